#include "memory_handles.h"

namespace tracehook::rehearsal::cuda {

MemoryHandles::Handle MemoryHandles::retain(const Physical::Pointer& memory) {
    const Handle handle = reinterpret_cast<uintptr_t>(memory.get());
    const std::lock_guard lock(mutex_);
    ++held_.try_emplace(handle, Held{memory, 0}).first->second.holders;
    return handle;
}

bool MemoryHandles::release(Handle handle) {
    Physical::Pointer last; // outlives the lock
    const std::lock_guard lock(mutex_);
    const auto at = held_.find(handle);
    if (at == held_.end()) {
        return false;
    }
    if (--at->second.holders == 0) {
        last = std::move(at->second.memory);
        held_.erase(at);
    }
    return true;
}

Physical::Pointer MemoryHandles::find(Handle handle) const {
    const std::lock_guard lock(mutex_);
    const auto at = held_.find(handle);
    return at == held_.end() ? nullptr : at->second.memory;
}

} // namespace tracehook::rehearsal::cuda
