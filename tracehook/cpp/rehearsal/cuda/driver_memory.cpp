// The emulated driver's virtual memory: addresses, memory, and the mapping of one on the other.
// PyTorch's expandable segments are made of it, and memory of several processes.
//
// Any thread, except in a forked child, where everything fails.
#include "backing.h"
#include "driver_context.h"
#include "identity.h"
#include "memory.h"
#include "memory_handles.h"
#include "unwritten.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/mman.h>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr int kPinnedMemory = 1;
constexpr int kDeviceLocation = 1;

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
    return type == kDeviceLocation && in_range(device);
}

void* at(uintptr_t address) {
    return reinterpret_cast<void*>(address);
}

bool fabric() {
    static const bool has = has_fabric();
    return has;
}

template <typename Body> int on_memory(Body&& body, const char* call = __builtin_FUNCTION()) {
    const int status = enter_driver(call);
    return status == kSuccess ? guarded(body) : status;
}

// Runs `body` with the memory of a handle.
template <typename Body>
int with_memory(uint64_t handle, Body&& body, const char* call = __builtin_FUNCTION()) {
    return on_memory(
        [&]() -> int {
            const Physical::Pointer memory = MemoryHandles::instance().find(handle);
            return memory == nullptr ? kInvalidValue : outcome(body, memory);
        },
        call);
}

// Whether all of what ncclMemAlloc gave gets one other address, which serves from then on.
bool is_moved(const Physical& memory, size_t offset, size_t size) {
    const std::vector<Allocation> mapped = Memory::instance().mappings_of(memory);
    return offset == 0 && size == memory.size() && mapped.size() == 1 &&
           mapped.front().kind == Kind::kOwned;
}

// Makes a handle of the memory that `find` finds.
template <typename Find>
int make_handle(uint64_t* handle, Find&& find, const char* call = __builtin_FUNCTION()) {
    return on_memory(
        [&]() -> int {
            Physical::Pointer memory;
            const int status = find(memory);
            if (status == kSuccess) {
                *handle = MemoryHandles::instance().retain(memory);
            }
            return status;
        },
        call);
}

} // namespace

EMU_EXPORT int cuMemGetAllocationGranularity(size_t* granularity, const AllocationProperties*,
                                             int) {
    *granularity = kGranularity;
    return kSuccess;
}

EMU_EXPORT int cuMemAddressReserve(uintptr_t* address, size_t size, size_t alignment,
                                   uintptr_t wanted, unsigned long long) {
    return on_memory([&] {
        *address = reinterpret_cast<uintptr_t>(
            Backing::reserve(size, std::max(alignment, kGranularity), at(wanted)));
        return *address == 0 ? kMemoryAllocation : kSuccess;
    });
}

EMU_EXPORT int cuMemAddressFree(uintptr_t address, size_t size) {
    return on_memory([&] { return munmap(at(address), size) == 0 ? kSuccess : kInvalidValue; });
}

EMU_EXPORT int cuMemCreate(uint64_t* handle, size_t size, const AllocationProperties* properties,
                           unsigned long long) {
    return make_handle(handle, [&](Physical::Pointer& memory) -> int {
        const int device = properties->location, types = properties->handle_types;
        if (!is_device(properties->location_type, device) || size == 0 ||
            size % kGranularity != 0) {
            return kInvalidValue;
        }
        if ((types & ~(fabric() ? kFileDescriptor | kFabric : kFileDescriptor)) != 0) {
            return kNotSupported;
        }
        memory =
            types != 0 ? Physical::shareable(size, device, types) : Physical::plain(size, device);
        return memory == nullptr ? kMemoryAllocation : kSuccess;
    });
}

EMU_EXPORT int cuMemRelease(uint64_t handle) {
    return on_memory(
        [&] { return MemoryHandles::instance().release(handle) ? kSuccess : kInvalidValue; });
}

EMU_EXPORT int cuMemMap(uintptr_t address, size_t size, size_t offset, uint64_t handle,
                        unsigned long long) {
    return with_memory(handle, [&](const Physical::Pointer& memory) {
        const bool fits = size != 0 && offset <= memory->size() && size <= memory->size() - offset;
        const bool aligned = (address | size | offset) % kGranularity == 0;
        if (memory->mark_mapped() && !is_moved(*memory, offset, size)) {
            // By a second address, perhaps.
            Unwritten::instance().open_to_others(*memory);
        }
        return fits && aligned && Memory::instance().map(at(address), memory, offset, size)
                   ? kSuccess
                   : kInvalidValue;
    });
}

EMU_EXPORT int cuMemUnmap(uintptr_t address, size_t size) {
    return on_memory(
        [&] { return Memory::instance().unmap(at(address), size) ? kSuccess : kInvalidValue; });
}

EMU_EXPORT int cuMemSetAccess(uintptr_t address, size_t size, const AccessDescription* descriptions,
                              size_t count) {
    return on_memory([&]() -> int {
        for (const AccessDescription& each : std::span(descriptions, count)) {
            const int access = each.access;
            if (!is_device(each.location_type, each.location) ||
                (access != 0 && access != 1 && access != 3) ||
                !Memory::instance().set_access(at(address), size, each.location,
                                               static_cast<Access>(access))) {
                return kInvalidValue;
            }
        }
        return count == 0 ? kInvalidValue : kSuccess;
    });
}

// The location has the layout of an AccessDescription without its last field.
EMU_EXPORT int cuMemGetAccess(unsigned long long* access, const int* location, uintptr_t address) {
    return on_memory([&]() -> int {
        const auto allocation = Memory::instance().find(at(address), 1);
        if (!is_device(location[0], location[1]) || !allocation || !allocation->has_handle) {
            return kInvalidValue;
        }
        const uint64_t bit = 1ULL << location[1];
        const bool own = allocation->kind == Kind::kOwned; // of ncclMemAlloc: for all devices
        *access = own || (allocation->writers & bit) != 0 ? 3
                  : (allocation->readers & bit) != 0      ? 1
                                                          : 0;
        return kSuccess;
    });
}

EMU_EXPORT int cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
    return make_handle(handle, [&](Physical::Pointer& memory) {
        const auto allocation = Memory::instance().find(address, 1);
        if (!allocation || !allocation->has_handle) {
            return kInvalidValue;
        }
        memory = allocation->physical;
        return kSuccess;
    });
}

EMU_EXPORT int cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties,
                                                      uint64_t handle) {
    return with_memory(handle, [&](const Physical::Pointer& memory) {
        *properties = {kPinnedMemory,    memory->types(), kDeviceLocation,
                       memory->device(), nullptr,         {}};
    });
}

// Fabric handles are for several machines: a rehearsal has them only if it is asked to.
EMU_EXPORT int cuMemExportToShareableHandle(void* shared, uint64_t handle, int type,
                                            unsigned long long flags) {
    return with_memory(handle, [&](const Physical::Pointer& memory) {
        if (type == kFabric && fabric()) {
            Unwritten::instance().open_to_others(*memory);
            return memory->share(*static_cast<FabricHandle*>(shared)) ? kSuccess : kInvalidValue;
        }
        if (type == kFabric || type != kFileDescriptor || flags != 0 ||
            (memory->types() & kFileDescriptor) == 0) {
            return type == kFabric ? kNotSupported : kInvalidValue;
        }
        Unwritten::instance().open_to_others(*memory);
        const int descriptor = memory->share();
        if (descriptor < 0) {
            return kOperatingSystem;
        }
        *static_cast<int*>(shared) = descriptor;
        return kSuccess;
    });
}

// A descriptor travels in the pointer itself.
EMU_EXPORT int cuMemImportFromShareableHandle(uint64_t* handle, void* shared, int type) {
    return make_handle(handle, [&](Physical::Pointer& memory) {
        if (type == kFabric) {
            return fabric() ? Physical::import(*static_cast<const FabricHandle*>(shared), memory)
                            : kNotSupported;
        }
        return type == kFileDescriptor
                   ? Physical::import(static_cast<int>(reinterpret_cast<intptr_t>(shared)), memory)
                   : kInvalidValue;
    });
}

// PyTorch offers memory of ncclMemAlloc only where this function is; nothing is multicast here.
EMU_EXPORT int cuMulticastCreate(uint64_t*, const void*) {
    return kNotSupported;
}

} // namespace tracehook::rehearsal::cuda
