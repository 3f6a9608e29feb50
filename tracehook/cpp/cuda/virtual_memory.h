// The functions of the driver for memory and addresses that are made apart: those of the driver
// that torch loaded, reached by dlsym. No header.
#pragma once

#include "cuda/runtime.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tracehook::cuda {

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
    std::array<std::uint8_t, 8> flags{}; // the second: GPUDirect RDMA
};
static_assert(sizeof(Properties) == 32);
// Of handle_types, and what memory is exported and imported as.
constexpr int kPosixFile = 1;
constexpr int kFabric = 8;

// Null where this process has no such function.
struct VirtualMemory {
    Function<Memory*, std::size_t, const Properties*, unsigned long long> cuMemCreate = nullptr;
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
    Function<unsigned long long*, const Location*, std::uintptr_t> cuMemGetAccess = nullptr;
    Function<Memory> cuMemRelease = nullptr;
    Function<std::uintptr_t*, std::size_t*, std::uintptr_t> cuMemGetAddressRange_v2 = nullptr;
    Function<Properties*, Memory> cuMemGetAllocationPropertiesFromHandle = nullptr;
    Function<int*, int, int> cuDeviceGetAttribute = nullptr;
    Function<void*, int, std::uintptr_t> cuPointerGetAttribute = nullptr;

    // Whether memory of cuMemCreate can be made and passed to another process.
    bool passes_memory() const noexcept;
};

// Any thread. Finds the driver among the loaded libraries at the first call, which comes after
// torch loaded it.
const VirtualMemory& virtual_memory() noexcept;

} // namespace tracehook::cuda
