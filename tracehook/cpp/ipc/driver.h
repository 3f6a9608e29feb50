// The functions of the CUDA runtime and driver that peers need: those of the libraries that torch
// loaded, reached by dlsym. No second copy, no header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tracehook::ipc {

using RuntimeHandle = std::array<std::uint8_t, 64>; // cudaIpcMemHandle_t
using FabricHandle = std::array<std::uint8_t, 64>;  // CUmemFabricHandle
using Stream = void*;
using Memory = std::uint64_t; // CUmemGenericAllocationHandle

struct Location { // CUmemLocation
    int type = 1; // a device
    int id = 0;
};

struct Access { // CUmemAccessDesc
    Location location;
    int flags = 0;
};
constexpr int kReadOnly = 1;
constexpr int kReadWrite = 3;

struct Properties { // CUmemAllocationProp
    int type = 0;
    int handle_types = 0;
    Location location;
    void* unused = nullptr;
    std::array<std::uint8_t, 8> flags{};
};
static_assert(sizeof(Properties) == 32);
// Of handle_types, and what memory is exported and imported as.
constexpr int kPosixFile = 1;
constexpr int kFabric = 8;

struct MemoryOperation { // CUstreamBatchMemOpParams, of 32-bit waits and writes
    std::uint32_t operation = 0;
    std::uintptr_t address = 0;
    std::uint64_t value = 0;
    std::uint32_t flags = 0;
    std::uint64_t alias = 0;
    std::uint64_t unused = 0;
};
static_assert(sizeof(MemoryOperation) == 48);

template <typename... Args> using Function = int (*)(Args...);

struct Driver {
    // Of the runtime.
    Function<int*> cudaGetDevice = nullptr;
    Function<int> cudaSetDevice = nullptr;
    Function<> cudaGetLastError = nullptr;
    Function<int*, int*> cudaDeviceGetStreamPriorityRange = nullptr;
    Function<Stream*, unsigned, int> cudaStreamCreateWithPriority = nullptr;
    Function<RuntimeHandle*, void*> cudaIpcGetMemHandle = nullptr;
    Function<void**, RuntimeHandle, unsigned> cudaIpcOpenMemHandle = nullptr; // by value
    Function<void*> cudaIpcCloseMemHandle = nullptr;
    const char* (*cudaGetErrorName)(int) = nullptr;
    const char* (*cudaGetErrorString)(int) = nullptr;
    // Of the driver.
    Function<Memory*, void*> cuMemRetainAllocationHandle = nullptr;
    Function<void*, Memory, int, unsigned long long> cuMemExportToShareableHandle = nullptr;
    Function<Memory*, void*, int> cuMemImportFromShareableHandle = nullptr;
    Function<std::uintptr_t*, std::size_t, std::size_t, std::uintptr_t, unsigned long long>
        cuMemAddressReserve = nullptr;
    Function<std::uintptr_t, std::size_t> cuMemAddressFree = nullptr;
    Function<std::uintptr_t, std::size_t, std::size_t, Memory, unsigned long long> cuMemMap =
        nullptr;
    Function<std::uintptr_t, std::size_t> cuMemUnmap = nullptr;
    Function<std::uintptr_t, std::size_t, const Access*, std::size_t> cuMemSetAccess = nullptr;
    Function<Memory> cuMemRelease = nullptr;
    Function<std::uintptr_t*, std::size_t*, std::uintptr_t> cuMemGetAddressRange_v2 = nullptr;
    Function<Properties*, Memory> cuMemGetAllocationPropertiesFromHandle = nullptr;
    Function<Stream, unsigned, MemoryOperation*, unsigned> cuStreamBatchMemOp_v2 = nullptr;
    Function<int, const char**> cuGetErrorName = nullptr;
    Function<int, const char**> cuGetErrorString = nullptr;

    // Whether memory of cuMemCreate can be passed to another process.
    bool passes_memory() const noexcept;
};

// Finds both libraries among those already loaded. Throws std::runtime_error with one line if there
// is no CUDA runtime.
const Driver& driver();

// A call into CUDA that failed: its error number, and one line with the call and CUDA's own name
// for it.
class CudaError : public std::runtime_error {
  public:
    CudaError(const std::string& text, int code) : std::runtime_error(text), code(code) {}
    const int code;
};

// Throw CudaError if `status` is no success. A null function is one that this CUDA lacks.
void check_runtime(const char* call, int status);
void check_driver(const char* call, int status);

// Makes `device` current in this thread while it lives.
class OnDevice {
  public:
    explicit OnDevice(int device);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

  private:
    int before_ = -1;
};

} // namespace tracehook::ipc
