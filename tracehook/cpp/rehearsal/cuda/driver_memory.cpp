// The emulated driver's virtual memory: addresses, memory, and the mapping of one on the other.
// PyTorch's expandable segments are made of it, and memory of several processes.
//
// Any thread, except in a forked child, where everything fails.
#include "cuda_abi.h"
#include "device.h"
#include "driver_support.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr int kPinnedMemory = 1;
constexpr int kDeviceLocation = 1;
constexpr int kFileDescriptor = 1;
constexpr int kFabricHandle = 8;

struct AllocationProperties {
    int type;
    int handle_types;
    int location_type;
    int location;
    void* unused;
    unsigned char flags[8];
};
static_assert(sizeof(AllocationProperties) == 32);

// Each that a device allows; cuMemSetAccess takes an array of them.
struct AccessDescription {
    int location_type;
    int location;
    int access;
};
static_assert(sizeof(AccessDescription) == 12);

bool is_device(int type, int device) {
    return type == kDeviceLocation && device >= 0 && device < emu_device_count();
}

template <typename Body> int on_memory(Body&& body, const char* call = __builtin_FUNCTION()) {
    const int status = emu_driver_enter(call);
    return status == kSuccess ? body() : status;
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cuMemGetAllocationGranularity(size_t* granularity, const AllocationProperties*,
                                             int) {
    *granularity = emu_memory_granularity();
    return kSuccess;
}

EMU_EXPORT int cuMemAddressReserve(uintptr_t* address, size_t size, size_t alignment, uintptr_t,
                                   unsigned long long) {
    return on_memory([&] {
        *address = reinterpret_cast<uintptr_t>(emu_addresses_reserve(size, alignment));
        return *address == 0 ? kMemoryAllocation : kSuccess;
    });
}

EMU_EXPORT int cuMemAddressFree(uintptr_t address, size_t size) {
    return on_memory([&] {
        return emu_addresses_free(reinterpret_cast<void*>(address), size) != 0 ? kSuccess
                                                                               : kInvalidValue;
    });
}

EMU_EXPORT int cuMemCreate(uint64_t* handle, size_t size, const AllocationProperties* properties,
                           unsigned long long) {
    return on_memory([&]() -> int {
        if (!is_device(properties->location_type, properties->location) || size == 0 ||
            size % emu_memory_granularity() != 0) {
            return kInvalidValue;
        }
        const int known = emu_has_fabric() != 0 ? kFileDescriptor | kFabricHandle : kFileDescriptor;
        if ((properties->handle_types & ~known) != 0) {
            return kNotSupported;
        }
        return emu_handle_create(handle, size, properties->location, properties->handle_types);
    });
}

EMU_EXPORT int cuMemRelease(uint64_t handle) {
    return on_memory([&] { return emu_handle_release(handle); });
}

EMU_EXPORT int cuMemMap(uintptr_t address, size_t size, size_t offset, uint64_t handle,
                        unsigned long long) {
    return on_memory(
        [&] { return emu_mapping_add(reinterpret_cast<void*>(address), size, offset, handle); });
}

EMU_EXPORT int cuMemUnmap(uintptr_t address, size_t size) {
    return on_memory([&] { return emu_mapping_remove(reinterpret_cast<void*>(address), size); });
}

EMU_EXPORT int cuMemSetAccess(uintptr_t address, size_t size, const AccessDescription* descriptions,
                              size_t count) {
    return on_memory([&]() -> int {
        for (const AccessDescription& each : std::span(descriptions, count)) {
            if (!is_device(each.location_type, each.location)) {
                return kInvalidValue;
            }
            const int status = emu_mapping_allow(reinterpret_cast<void*>(address), size,
                                                 each.location, each.access);
            if (status != kSuccess) {
                return status;
            }
        }
        return count == 0 ? kInvalidValue : kSuccess;
    });
}

EMU_EXPORT int cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
    return on_memory([&] { return emu_handle_retain(handle, address); });
}

EMU_EXPORT int cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties,
                                                      uint64_t handle) {
    return on_memory([&] {
        AllocationProperties found{kPinnedMemory, 0, kDeviceLocation, 0, nullptr, {}};
        const int status = emu_handle_describe(handle, &found.location, &found.handle_types);
        if (status == kSuccess) {
            *properties = found;
        }
        return status;
    });
}

// Fabric handles are for several machines: a rehearsal has them only if it is asked to.
EMU_EXPORT int cuMemExportToShareableHandle(void* shared, uint64_t handle, int type,
                                            unsigned long long flags) {
    return on_memory([&]() -> int {
        if (type == kFabricHandle) {
            return emu_has_fabric() != 0 ? emu_handle_export_fabric(handle, shared) : kNotSupported;
        }
        return type == kFileDescriptor && flags == 0
                   ? emu_handle_export(handle, static_cast<int*>(shared))
                   : kInvalidValue;
    });
}

// A descriptor travels in the pointer itself.
EMU_EXPORT int cuMemImportFromShareableHandle(uint64_t* handle, void* shared, int type) {
    return on_memory([&]() -> int {
        if (type == kFabricHandle) {
            return emu_has_fabric() != 0 ? emu_handle_import_fabric(handle, shared) : kNotSupported;
        }
        return type == kFileDescriptor
                   ? emu_handle_import(handle, static_cast<int>(reinterpret_cast<intptr_t>(shared)))
                   : kInvalidValue;
    });
}

// PyTorch offers memory of ncclMemAlloc only where this function is; nothing is multicast here.
EMU_EXPORT int cuMulticastCreate(uint64_t*, const void*) {
    return kNotSupported;
}
