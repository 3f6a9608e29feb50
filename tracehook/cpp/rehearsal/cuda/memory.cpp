#include "memory.h"

#include "devices.h"
#include "ipc_export.h"
#include "unwritten.h"

#include <iterator>

#include <sys/mman.h>

namespace tracehook::rehearsal::cuda {
namespace {

// Plain memory lies where its file says, and its addresses go with it.
void give_addresses_back(void* address, size_t size, bool has_handle) {
    Backing& backing = Backing::instance();
    Backing::unmap(address, size);
    if (has_handle) {
        backing.give_back(backing.offset(address), size);
    }
}

} // namespace

void* Memory::allocate(size_t size, int device, bool has_handle) {
    Backing& backing = Backing::instance();
    if (size == 0 || size > backing.capacity()) {
        return nullptr;
    }
    const size_t mapped = (size + kGranularity - 1) / kGranularity * kGranularity;
    const Physical::Pointer physical = has_handle
                                           ? Physical::shareable(mapped, device, kFileDescriptor)
                                           : Physical::plain(mapped, device);
    if (physical == nullptr) {
        return nullptr;
    }
    // As addresses of the driver: in another order on each device.
    const std::optional<uint64_t> place =
        has_handle ? backing.take(mapped, device % 2 != 0) : physical->offset();
    if (!place) {
        return nullptr;
    }
    void* const address = backing.address(*place);
    if (!physical->map(address, 0, mapped) ||
        mprotect(address, mapped, PROT_READ | PROT_WRITE) != 0) {
        give_addresses_back(address, mapped, has_handle);
        return nullptr;
    }
    // Who maps its handle somewhere else gives it a second address.
    physical->mark_mapped();
    insert({reinterpret_cast<uintptr_t>(address), size, mapped, device, Kind::kOwned, physical,
            physical->offset(), has_handle});
    return address;
}

bool Memory::free(void* pointer) {
    const std::optional<Allocation> allocation = condemn(pointer, Kind::kOwned);
    if (!allocation) {
        return false;
    }
    notify(*allocation);
    if (!allocation->has_handle) { // else its offset is one in a file of its own
        IpcExports::instance().withdraw(*allocation);
    }
    // First forgotten, then given back: another thread may be given the same address at once.
    Unwritten::instance().forget(pointer, allocation->mapped);
    erase(allocation->base);
    give_addresses_back(pointer, allocation->mapped, allocation->has_handle);
    return true;
}

bool Memory::map(void* address, const Physical::Pointer& physical, size_t offset, size_t size) {
    const auto base = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    const auto next = live_.lower_bound(base);
    const bool taken =
        (next != live_.end() && next->first < base + size) ||
        (next != live_.begin() && std::prev(next)->first + std::prev(next)->second.mapped > base);
    if (taken || !physical->map(address, offset, size)) {
        return false;
    }
    live_.insert_or_assign(base, Allocation{base, size, size, physical->device(), Kind::kMapped,
                                            physical, physical->offset() + offset, true});
    return true;
}

bool Memory::unmap(void* address, size_t size) {
    std::vector<Allocation> condemned;
    {
        const std::lock_guard lock(mutex_);
        for (Allocation* mapping : mappings(reinterpret_cast<uintptr_t>(address), size)) {
            mapping->dying = true;
            condemned.push_back(*mapping);
        }
    }
    for (const Allocation& mapping : condemned) {
        notify(mapping);
        Unwritten::instance().forget(reinterpret_cast<void*>(mapping.base), mapping.mapped);
        Backing::unmap(reinterpret_cast<void*>(mapping.base), mapping.mapped);
        erase(mapping.base);
    }
    return !condemned.empty();
}

bool Memory::set_access(void* address, size_t size, int device, Access access) {
    const uint64_t bit = 1ULL << device;
    if (access != Access::kReadWrite) {
        // It can no longer be filled.
        Unwritten::instance().forget(address, size);
    }
    const std::lock_guard lock(mutex_);
    const std::vector<Allocation*> found = mappings(reinterpret_cast<uintptr_t>(address), size);
    for (Allocation* mapping : found) {
        mapping->readers =
            access != Access::kNone ? mapping->readers | bit : mapping->readers & ~bit;
        mapping->writers =
            access == Access::kReadWrite ? mapping->writers | bit : mapping->writers & ~bit;
        // The devices of a process share its addresses here: the one that may do most decides.
        const int protection = (mapping->readers != 0 ? PROT_READ : PROT_NONE) |
                               (mapping->writers != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
        mprotect(reinterpret_cast<void*>(mapping->base), mapping->mapped, protection);
    }
    return !found.empty();
}

void Memory::adopt(void* address, size_t size, int device) {
    insert({reinterpret_cast<uintptr_t>(address), size, size, device, Kind::kForeign, nullptr});
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

std::vector<Allocation> Memory::mappings_of(const Physical& physical) const {
    std::vector<Allocation> found;
    const std::lock_guard lock(mutex_);
    for (const auto& [base, allocation] : live_) {
        if (allocation.physical.get() == &physical) {
            found.push_back(allocation);
        }
    }
    return found;
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

std::vector<Allocation*> Memory::mappings(uintptr_t address, size_t size) {
    std::vector<Allocation*> found;
    const uintptr_t end = address + size;
    while (address < end) {
        const auto at = live_.find(address);
        if (at == live_.end() || at->second.kind != Kind::kMapped || at->second.dying ||
            at->second.mapped > end - address) {
            return {};
        }
        found.push_back(&at->second);
        address += at->second.mapped;
    }
    return found;
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

} // namespace tracehook::rehearsal::cuda
