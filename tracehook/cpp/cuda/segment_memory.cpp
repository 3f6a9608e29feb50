#include "cuda/segment_memory.h"

#include "cuda/device_wait.h"
#include "cuda/held_memory.h"
#include "cuda/runtime.h"
#include "cuda/virtual_memory.h"

namespace tracehook::cuda {

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kNoRoom = 2;       // the same in the driver and in the runtime
constexpr int kPinned = 1;       // CU_MEM_ALLOCATION_TYPE_PINNED
constexpr std::size_t kRdma = 1; // in Properties::flags
constexpr int kMemoryType = 2;   // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kLegacyIpc = 10;   // CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
// CUdevice_attribute
constexpr int kHasVirtualMemory = 102;
constexpr int kHasDescriptors = 103;
constexpr int kHasRdma = 110;

bool has(int attribute, int device) noexcept {
    int value = 0;
    const auto& driver = virtual_memory();
    return driver.cuDeviceGetAttribute != nullptr &&
           driver.cuDeviceGetAttribute(&value, attribute, device) == kSuccess && value != 0;
}

// Maps the memory at an address of its own. Nothing is left if it fails.
int map(std::uintptr_t* address, Memory memory, std::size_t size, int device,
        std::span<const int> also) noexcept {
    std::uintptr_t place = 0;
    int status = virtual_memory().cuMemAddressReserve(&place, size, 0, 0, 0);
    if (status != kSuccess) {
        return status;
    }
    const Access own = access_of(device);
    status = map_at(place, memory, size, {&own, 1});
    for (std::size_t i = 0; status == kSuccess && i < also.size(); ++i) {
        if (status = allow_access(place, size, also[i]); status != kSuccess) {
            unmap(place, size);
        }
    }
    *address = status == kSuccess ? place : *address;
    return status;
}

} // namespace

registrar::MemoryKind SegmentMemory::kind_of(std::uintptr_t address) noexcept {
    const auto& driver = virtual_memory();
    if (!driver.passes_memory()) {
        return registrar::MemoryKind::kUnknown;
    }
    int is_legacy = 0;
    if (driver.cuPointerGetAttribute != nullptr &&
        driver.cuPointerGetAttribute(&is_legacy, kLegacyIpc, address) == kSuccess &&
        is_legacy != 0) {
        return registrar::MemoryKind::kPlain;
    }
    const HeldMemory held(address);
    Properties properties;
    if (!held) {
        return registrar::MemoryKind::kPlain;
    }
    if (driver.cuMemGetAllocationPropertiesFromHandle(&properties, held.memory) != kSuccess) {
        return registrar::MemoryKind::kUnknown;
    }
    return (properties.handle_types & (kPosixFile | kFabric)) != 0
               ? registrar::MemoryKind::kShareable
               : registrar::MemoryKind::kPrivate;
}

bool SegmentMemory::has_memory(std::uintptr_t address) noexcept {
    const auto ask = virtual_memory().cuPointerGetAttribute;
    int type = 0;
    return ask == nullptr || ask(&type, kMemoryType, address) != kInvalidValue;
}

std::uintptr_t SegmentMemory::map_again(const registrar::Segment& segment) noexcept {
    const auto& driver = virtual_memory();
    const BesideCaptures relaxed;
    const HeldMemory held(segment.address);
    std::uintptr_t base = 0;
    std::size_t size = 0;
    // Only where the segment is one whole allocation does NCCL map the right memory.
    if (!held || driver.cuMemGetAddressRange_v2(&base, &size, segment.address) != kSuccess ||
        base != segment.address || size != segment.size) {
        return 0;
    }
    std::uintptr_t alias = 0;
    return map(&alias, held.memory, size, segment.device, {}) == kSuccess ? alias : 0;
}

void SegmentMemory::unmap(const registrar::Segment& segment, std::uintptr_t alias,
                          bool is_done) noexcept {
    if (!is_done) {
        wait_for_device(segment.device);
    }
    const BesideCaptures relaxed;
    cuda::unmap(alias, segment.size);
}

bool makes_shareable(int device) noexcept {
    return virtual_memory().passes_memory() && has(kHasVirtualMemory, device) &&
           has(kHasDescriptors, device);
}

int allocate_shareable(std::uintptr_t* address, std::size_t size, int device,
                       std::span<const int> also) noexcept {
    const BesideCaptures relaxed;
    Properties properties;
    properties.type = kPinned;
    properties.handle_types = kPosixFile;
    properties.location.id = device;
    properties.flags[kRdma] = has(kHasRdma, device) ? 1 : 0;
    HeldMemory held;
    const int status = held.holds(virtual_memory().cuMemCreate(&held.memory, size, &properties, 0));
    return status != kSuccess ? status : map(address, held.memory, size, device, also);
}

int free_shareable(std::uintptr_t address, std::size_t size, int device, bool is_done) noexcept {
    const int status = is_done ? kSuccess : wait_for_device(device);
    const BesideCaptures relaxed;
    return status != kSuccess ? status : unmap(address, size);
}

int allow_access(std::uintptr_t address, std::size_t size, int device) noexcept {
    const Access access = access_of(device);
    return virtual_memory().cuMemSetAccess(address, size, &access, 1);
}

int export_descriptor(std::uintptr_t address) noexcept {
    const HeldMemory held(address);
    int descriptor = -1;
    return held && virtual_memory().cuMemExportToShareableHandle(&descriptor, held.memory,
                                                                 kPosixFile, 0) == kSuccess
               ? descriptor
               : -1;
}

int map_descriptor(std::uintptr_t* address, int descriptor, std::size_t size, int device) noexcept {
    const auto& driver = virtual_memory();
    if (!driver.passes_memory()) {
        return kInvalidValue;
    }
    const BesideCaptures relaxed;
    HeldMemory held;
    const int status = held.holds(driver.cuMemImportFromShareableHandle(
        &held.memory, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)), kPosixFile));
    return status != kSuccess ? status : map(address, held.memory, size, device, {});
}

int unmap(std::uintptr_t address, std::size_t size) noexcept {
    const auto& driver = virtual_memory();
    const int status = driver.cuMemUnmap(address, size);
    if (status == kSuccess) {
        driver.cuMemAddressFree(address, size);
    }
    return status;
}

} // namespace tracehook::cuda
