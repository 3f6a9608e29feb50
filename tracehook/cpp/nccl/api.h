// The real NCCL and CUDA runtime: the ones that torch loaded, reached by dlsym. No second copy, no
// header.
#pragma once

#include "nccl/abi.h"

#include <string>

namespace tracehook::nccl {

template <typename... Args> using Function = int (*)(Args...);

struct Api {
#define GUARDED(name, position, ...) Function<__VA_ARGS__> name = nullptr;
#define PLACED(name, position, operation, send, receive, by_send, by_receive, ...)                 \
    Function<__VA_ARGS__> name = nullptr;
#define LIFECYCLE(name, ...) Function<__VA_ARGS__> name = nullptr;
#include "nccl/calls.def"
#undef GUARDED
#undef PLACED
#undef LIFECYCLE
    Function<const Comm, int*> ncclCommCount = nullptr;
    Function<const Comm, int*> ncclCommUserRank = nullptr;
    Function<const Comm, int*> ncclCommCuDevice = nullptr;
    Function<int*> ncclGetVersion = nullptr;
    Function<Comm, int, std::uint64_t*> ncclCommMemStats = nullptr; // 2.29.7
    Function<void**, std::size_t> ncclMemAlloc = nullptr;
    Function<void*> ncclMemFree = nullptr;
    const char* (*ncclGetLastError)(Comm) = nullptr;
    Function<int*> cudaGetDevice = nullptr;
    Function<int> cudaSetDevice = nullptr;
    Function<Stream, int*> cudaStreamIsCapturing = nullptr;
    // With seven arguments: of CUDA 13, or _v3 of CUDA 12.3.
    Function<Stream, int*, unsigned long long*, void**, const void**, const void**, std::size_t*>
        cudaStreamGetCaptureInfo = nullptr;
    Function<void**, void*, void (*)(void*), unsigned, unsigned> cudaUserObjectCreate = nullptr;
    Function<void*, unsigned> cudaUserObjectRelease = nullptr;
    Function<void*, void*, unsigned, unsigned> cudaGraphRetainUserObject = nullptr;
};

// Finds both libraries among those already loaded. Nothing is loaded by this. Throws
// std::runtime_error with one line if there is none. The entries are the library's own (pncclX
// where it has them), never our wrappers.
const Api& api();
bool api_available(std::string* why = nullptr) noexcept;

// The path of a library whose functions torch calls in place of NCCL's, because it was preloaded;
// "" if there is none. Our functions call NCCL itself, and would pass that library by.
std::string in_front();

// NCCL's version as it says itself (22809 for 2.28.9); 0 without NCCL.
int version() noexcept;

inline constexpr int kFirstThatSuspends = 22907; // and tells of its memory

// The calling thread's current CUDA device; -1 if CUDA does not say.
int current_device() noexcept;

// 1 if `stream` is being captured into a graph.
bool capturing(Stream stream) noexcept;

} // namespace tracehook::nccl
