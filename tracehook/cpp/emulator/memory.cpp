#include "memory.h"

#include "device.h"
#include "devices.h"

#include <iterator>

namespace tracehook::emulator {

Memory& Memory::instance() {
    // Leaked: threads may still use it while the process exits.
    static Memory* const memory = new Memory;
    return *memory;
}

void* Memory::allocate(size_t size, int device, bool has_handle) {
    Backing& backing = Backing::instance();
    if (size == 0 || size > backing.capacity()) {
        return nullptr;
    }
    const size_t mapped = (size + kGranularity - 1) / kGranularity * kGranularity;
    const std::optional<uint64_t> offset = backing.take(mapped, device);
    if (!offset) {
        return nullptr;
    }
    void* const address = backing.address(*offset);
    if (!backing.map(address, *offset, mapped)) {
        backing.give_back(*offset, mapped, device);
        return nullptr;
    }
    insert({reinterpret_cast<uintptr_t>(address), size, mapped, *offset, device, Kind::kOwned,
            false, has_handle});
    return address;
}

bool Memory::free(void* pointer) {
    const std::optional<Allocation> allocation = condemn(pointer, Kind::kOwned);
    if (!allocation) {
        return false;
    }
    notify(*allocation);
    Backing::unmap(pointer, allocation->mapped);
    // First forgotten, then given back: another thread may be given the same address at once.
    erase(allocation->base);
    Backing::instance().give_back(allocation->offset, allocation->mapped, allocation->device);
    return true;
}

bool Memory::map(void* address, uint64_t offset, size_t size, int device) {
    if (!Backing::instance().map(address, offset, size)) {
        return false;
    }
    insert({reinterpret_cast<uintptr_t>(address), size, size, offset, device, Kind::kMapped, false,
            true});
    return true;
}

bool Memory::unmap(void* address, size_t size) {
    const std::optional<Allocation> allocation = condemn(address, Kind::kMapped);
    if (!allocation || allocation->mapped > size) {
        return false;
    }
    notify(*allocation);
    Backing::unmap(address, allocation->mapped);
    erase(allocation->base);
    return true;
}

void Memory::adopt(void* address, size_t size, int device) {
    insert({reinterpret_cast<uintptr_t>(address), size, size, kNoOffset, device, Kind::kForeign});
}

bool Memory::disown(void* address) {
    const std::optional<Allocation> allocation = condemn(address, Kind::kForeign);
    if (allocation) {
        erase(allocation->base);
    }
    return allocation.has_value();
}

std::optional<Allocation> Memory::find(const void* pointer, size_t size) const {
    if (forked_child()) {
        return std::nullopt;
    }
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard lock(mutex_);
    auto at = live_.upper_bound(address);
    if (at == live_.begin()) {
        return std::nullopt;
    }
    const Allocation& allocation = std::prev(at)->second;
    const size_t into = address - allocation.base;
    if (into >= allocation.size || size > allocation.size - into) {
        return std::nullopt;
    }
    return allocation;
}

std::optional<Allocation> Memory::condemn(void* address, Kind kind) {
    const std::lock_guard lock(mutex_);
    const auto at = live_.find(reinterpret_cast<uintptr_t>(address));
    if (at == live_.end() || at->second.kind != kind || at->second.dying) {
        return std::nullopt;
    }
    at->second.dying = true;
    return at->second;
}

void Memory::notify(const Allocation& allocation) const {
    if (const FreeObserver observer = observer_.load()) {
        observer(allocation.base, allocation.size);
    }
}

void Memory::insert(const Allocation& allocation) {
    const std::lock_guard lock(mutex_);
    live_.insert_or_assign(allocation.base, allocation);
}

void Memory::erase(uintptr_t base) {
    const std::lock_guard lock(mutex_);
    live_.erase(base);
}

} // namespace tracehook::emulator

using tracehook::emulator::Memory;

EMU_EXPORT int emu_memory_find(const void* pointer, size_t size, uintptr_t* base, size_t* bytes,
                               int* device) {
    const auto allocation = Memory::instance().find(pointer, size);
    if (!allocation) {
        return 0;
    }
    if (base != nullptr) {
        *base = allocation->base;
    }
    if (bytes != nullptr) {
        *bytes = allocation->size;
    }
    if (device != nullptr) {
        *device = allocation->device;
    }
    return 1;
}

EMU_EXPORT int emu_memory_export(const void* pointer, int* fd, uint64_t* offset) {
    const auto allocation = Memory::instance().find(pointer, 1);
    // Memory of another process can only be exported by that process.
    if (!allocation || allocation->offset == tracehook::emulator::kNoOffset) {
        return 0;
    }
    *fd = tracehook::emulator::Backing::instance().file();
    *offset = allocation->offset + (reinterpret_cast<uintptr_t>(pointer) - allocation->base);
    return 1;
}

EMU_EXPORT void emu_set_free_observer(void (*observer)(uintptr_t base, size_t size)) {
    Memory::instance().observe_frees(observer);
}

EMU_EXPORT void* emu_memory_allocate(size_t size, int device) {
    using namespace tracehook::emulator;
    if (enter_runtime() != kSuccess || device < 0 || device >= device_count()) {
        return nullptr;
    }
    try {
        activate_device(device);
        return Memory::instance().allocate(size, device, true);
    } catch (...) {
        return nullptr;
    }
}

EMU_EXPORT int emu_memory_free(void* pointer) {
    return !tracehook::emulator::forked_child() && Memory::instance().free(pointer) ? 1 : 0;
}

EMU_EXPORT int emu_memory_has_handle(const void* pointer) {
    const auto allocation = Memory::instance().find(pointer, 1);
    return allocation && allocation->has_handle ? 1 : 0;
}
