// What the functions in torch's slots for CUDA's memory share: segment_source.cpp (memory that
// comes and goes) and segment_sharing.cpp (other processes and devices). Nobody else includes this.
#pragma once

#include "cuda/runtime.h"
#include "registrar/registrar.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tracehook::torch {

inline constexpr int kSuccess = 0;
inline constexpr std::size_t kDevices = 64; // more than a host has

struct RuntimeHandle { // cudaIpcMemHandle_t
    std::uint64_t magic = 0;
    std::int32_t process = 0;
    std::int32_t descriptor = -1;
    std::uint64_t size = 0;
    std::uint64_t number = 0; // of the memory in its process: a handle is used as a name, too
    std::array<std::uint8_t, 32> unused{};
};
static_assert(sizeof(RuntimeHandle) == 64);

template <typename... Args> using Call = int (*)(Args...);

struct Real {
    Call<void**, std::size_t> cudaMalloc = nullptr;
    Call<void*> cudaFree = nullptr;
    Call<RuntimeHandle*, void*> cudaIpcGetMemHandle = nullptr;
    Call<void**, RuntimeHandle, unsigned> cudaIpcOpenMemHandle = nullptr;
    Call<void*> cudaIpcCloseMemHandle = nullptr;
    Call<int, unsigned> cudaDeviceEnablePeerAccess = nullptr;
};

// What cudaMalloc gave.
struct Block {
    std::size_t size = 0;
    int device = -1;
    bool shareable = false; // from virtual memory
    bool kept = false;      // its free is not to free it
    bool freed = false;     // and came
    int descriptor = -1;    // for other processes, once one asked
    std::uint64_t number = 0;
};

// Never destroyed: the allocator frees memory at exit, too.
struct Source {
    Real real;        // before any slot leads here
    std::mutex mutex; // what follows
    std::unordered_map<std::uintptr_t, Block> blocks;
    std::unordered_map<std::uintptr_t, std::size_t> mapped; // memory of other processes
    std::array<std::vector<int>, kDevices> also;            // who reaches a device's memory
    std::array<std::vector<std::uintptr_t>, kDevices> idle; // cudaMalloc's, freed and let go of
    std::array<int, kDevices> freeing{};                    // threads that free what was idle
    std::size_t segments = 0;                               // shareable ones that live
    std::size_t bytes = 0;
    std::uint64_t numbers = 0;
    std::array<std::atomic<int>, kDevices> able{}; // 1: yes, 2: no
    std::atomic<int> refused{0};
    std::atomic<int> idle_blocks{0};        // idle, or being freed
    std::atomic<std::uint64_t> departed{0}; // times that kept memory went
    std::atomic<registrar::Registrar*> registrar{nullptr};
    std::atomic<bool> stands{false};   // in the slots for cudaMalloc and cudaFree
    std::atomic<bool> replaced{false}; // segments come from virtual memory

    static Source& instance() {
        static auto* const one = new Source;
        return *one;
    }
};

inline int current_device() noexcept {
    int device = -1;
    const auto get = cuda::runtime().cudaGetDevice;
    return get != nullptr && cuda::absorbed(get(&device)) == kSuccess ? device : -1;
}

int on_cudaIpcGetMemHandle(RuntimeHandle* handle, void* pointer);
int on_cudaIpcOpenMemHandle(void** out, RuntimeHandle handle, unsigned flags);
int on_cudaIpcCloseMemHandle(void* pointer);
int on_cudaDeviceEnablePeerAccess(int peer, unsigned flags);

} // namespace tracehook::torch
