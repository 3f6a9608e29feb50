// The emulated driver's virtual memory: addresses, memory, and the mapping of one on the other.
// PyTorch's expandable segments are made of it.
//
// Any thread, except in a forked child, where everything fails.
#include "cuda_abi.h"
#include "device.h"
#include "driver_support.h"

#include <cstring>
#include <map>
#include <mutex>

namespace tracehook::emulator {
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

// Memory lives while its handle is held or it is mapped somewhere.
struct Physical {
    uint64_t offset;
    size_t size;
    AllocationProperties properties;
    int references = 1;
};

class PhysicalMemory {
  public:
    static PhysicalMemory& instance() {
        // Leaked: threads may still use it while the process exits.
        static PhysicalMemory* const memory = new PhysicalMemory;
        return *memory;
    }

    int create(uint64_t* handle, size_t size, const AllocationProperties& properties) {
        if (properties.location_type != kDeviceLocation || size == 0 ||
            size % emu_memory_granularity() != 0) {
            return kInvalidValue;
        }
        uint64_t offset = 0;
        if (emu_range_take(size, properties.location, &offset) == 0) {
            return kMemoryAllocation;
        }
        const std::lock_guard lock(mutex_);
        *handle = ++last_handle_;
        live_.emplace(*handle, Physical{offset, size, properties});
        return kSuccess;
    }

    int release(uint64_t handle) {
        const std::lock_guard lock(mutex_);
        return drop(handle);
    }

    int map(uintptr_t address, size_t size, size_t offset, uint64_t handle) {
        const std::lock_guard lock(mutex_);
        const auto at = live_.find(handle);
        if (at == live_.end() || offset > at->second.size || size > at->second.size - offset) {
            return kInvalidValue;
        }
        Physical& physical = at->second;
        if (emu_range_map(reinterpret_cast<void*>(address), physical.offset + offset, size,
                          physical.properties.location) == 0) {
            return kInvalidValue;
        }
        ++physical.references;
        mapped_.insert_or_assign(address, handle);
        return kSuccess;
    }

    // One call may cover several mappings that lie side by side.
    int unmap(uintptr_t address, size_t size) {
        const uintptr_t end = address + size;
        std::unique_lock lock(mutex_);
        for (auto at = mapped_.lower_bound(address); at != mapped_.end() && at->first < end;) {
            const auto [start, handle] = *at;
            // The observer of frees may call back.
            lock.unlock();
            if (emu_range_unmap(reinterpret_cast<void*>(start), end - start) == 0) {
                return kInvalidValue;
            }
            lock.lock();
            mapped_.erase(start);
            drop(handle);
            at = mapped_.lower_bound(start);
        }
        return kSuccess;
    }

    int retain(uint64_t* handle, uintptr_t address) {
        uintptr_t base = 0;
        if (emu_memory_find(reinterpret_cast<void*>(address), 1, &base, nullptr, nullptr) == 0) {
            return kInvalidValue;
        }
        const std::lock_guard lock(mutex_);
        const auto at = mapped_.find(base);
        if (at == mapped_.end()) {
            return kInvalidValue;
        }
        *handle = at->second;
        ++live_.at(*handle).references;
        return kSuccess;
    }

    int properties(AllocationProperties* properties, uint64_t handle) const {
        const std::lock_guard lock(mutex_);
        const auto at = live_.find(handle);
        if (at == live_.end()) {
            return kInvalidValue;
        }
        *properties = at->second.properties;
        return kSuccess;
    }

  private:
    int drop(uint64_t handle) {
        const auto at = live_.find(handle);
        if (at == live_.end()) {
            return kInvalidValue;
        }
        Physical& physical = at->second;
        if (--physical.references == 0) {
            emu_range_give_back(physical.offset, physical.size, physical.properties.location);
            live_.erase(at);
        }
        return kSuccess;
    }

    // Protects everything below. Comes before the mutexes of the memory.
    mutable std::mutex mutex_;
    uint64_t last_handle_ = 0;
    std::map<uint64_t, Physical> live_;
    std::map<uintptr_t, uint64_t> mapped_;
};

template <typename Body> int on_memory(Body&& body) noexcept {
    const int status = emu_driver_enter();
    if (status != kSuccess) {
        return status;
    }
    try {
        return body(PhysicalMemory::instance());
    } catch (...) {
        return kMemoryAllocation;
    }
}

} // namespace
} // namespace tracehook::emulator

using namespace tracehook::emulator;

EMU_EXPORT int cuMemGetAllocationGranularity(size_t* granularity, const AllocationProperties*,
                                             int) {
    *granularity = emu_memory_granularity();
    return kSuccess;
}

EMU_EXPORT int cuMemAddressReserve(uintptr_t* address, size_t size, size_t alignment, uintptr_t,
                                   unsigned long long) {
    return on_memory([&](PhysicalMemory&) {
        *address = reinterpret_cast<uintptr_t>(emu_addresses_reserve(size, alignment));
        return *address == 0 ? kMemoryAllocation : kSuccess;
    });
}

EMU_EXPORT int cuMemAddressFree(uintptr_t address, size_t size) {
    return on_memory([&](PhysicalMemory&) {
        return emu_addresses_free(reinterpret_cast<void*>(address), size) != 0 ? kSuccess
                                                                               : kInvalidValue;
    });
}

EMU_EXPORT int cuMemCreate(uint64_t* handle, size_t size, const AllocationProperties* properties,
                           unsigned long long) {
    return on_memory(
        [&](PhysicalMemory& memory) { return memory.create(handle, size, *properties); });
}

EMU_EXPORT int cuMemRelease(uint64_t handle) {
    return on_memory([&](PhysicalMemory& memory) { return memory.release(handle); });
}

EMU_EXPORT int cuMemMap(uintptr_t address, size_t size, size_t offset, uint64_t handle,
                        unsigned long long) {
    return on_memory(
        [&](PhysicalMemory& memory) { return memory.map(address, size, offset, handle); });
}

EMU_EXPORT int cuMemUnmap(uintptr_t address, size_t size) {
    return on_memory([&](PhysicalMemory& memory) { return memory.unmap(address, size); });
}

// Every device of the process may use all emulated memory.
EMU_EXPORT int cuMemSetAccess(uintptr_t, size_t, const void*, size_t) {
    return on_memory([](PhysicalMemory&) { return kSuccess; });
}

EMU_EXPORT int cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
    return on_memory([&](PhysicalMemory& memory) {
        return memory.retain(handle, reinterpret_cast<uintptr_t>(address));
    });
}

EMU_EXPORT int cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties,
                                                      uint64_t handle) {
    return on_memory([&](PhysicalMemory& memory) { return memory.properties(properties, handle); });
}

// Memory of the driver's own making is not shared between processes here.
EMU_EXPORT int cuMemExportToShareableHandle(void*, uint64_t, int, unsigned long long) {
    return kNotSupported;
}

EMU_EXPORT int cuMemImportFromShareableHandle(uint64_t*, void*, int) {
    return kNotSupported;
}

// PyTorch offers memory of ncclMemAlloc only where this function is; nothing is multicast here.
EMU_EXPORT int cuMulticastCreate(uint64_t*, const void*) {
    return kNotSupported;
}
