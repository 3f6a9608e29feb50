// The functions of the CUDA runtime and driver that peers need: those of the libraries that torch
// loaded, reached by dlsym. No second copy, no header.
#pragma once

#include "cuda/virtual_memory.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tracehook::ipc {

using RuntimeHandle = std::array<std::uint8_t, 64>; // cudaIpcMemHandle_t
using FabricHandle = std::array<std::uint8_t, 64>;  // CUmemFabricHandle
using Stream = void*;
using cuda::Access;
using cuda::Function;
using cuda::kFabric;
using cuda::kPosixFile;
using cuda::kReadOnly;
using cuda::kReadWrite;
using cuda::Memory;
using cuda::Properties;

struct MemoryOperation { // CUstreamBatchMemOpParams, of 32-bit waits and writes
    std::uint32_t operation = 0;
    std::uintptr_t address = 0;
    std::uint64_t value = 0;
    std::uint32_t flags = 0;
    std::uint64_t alias = 0;
    std::uint64_t unused = 0;
};
static_assert(sizeof(MemoryOperation) == 48);

struct Driver : cuda::VirtualMemory {
    // Of the runtime.
    Function<int*> cudaGetDevice = nullptr;
    Function<int> cudaSetDevice = nullptr;
    Function<int*, int*> cudaDeviceGetStreamPriorityRange = nullptr;
    Function<Stream*, unsigned, int> cudaStreamCreateWithPriority = nullptr;
    Function<Stream, int*> cudaStreamIsCapturing = nullptr;
    Function<RuntimeHandle*, void*> cudaIpcGetMemHandle = nullptr;
    Function<void**, RuntimeHandle, unsigned> cudaIpcOpenMemHandle = nullptr; // by value
    Function<void*> cudaIpcCloseMemHandle = nullptr;
    const char* (*cudaGetErrorName)(int) = nullptr;
    const char* (*cudaGetErrorString)(int) = nullptr;
    // Of the driver, besides those of virtual memory.
    Function<Stream, unsigned, MemoryOperation*, unsigned> cuStreamBatchMemOp_v2 = nullptr;
    Function<int, const char**> cuGetErrorName = nullptr;
    Function<int, const char**> cuGetErrorString = nullptr;
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
