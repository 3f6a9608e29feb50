// The handles by which the driver's virtual memory calls name memory, each with a count of its
// holders.
//
// Any thread, except in a forked child. Never throws, apart from std::bad_alloc.
#pragma once

#include "leaked.h"
#include "physical.h"

#include <cstdint>
#include <map>
#include <mutex>

namespace tracehook::rehearsal::cuda {

class MemoryHandles {
  public:
    using Handle = uint64_t;

    static MemoryHandles& instance() { return leaked<MemoryHandles>(); }

    // The handle of memory, with one holder more.
    Handle retain(const Physical::Pointer& memory) {
        const Handle handle = reinterpret_cast<uintptr_t>(memory.get());
        const std::lock_guard lock(mutex_);
        ++held_.try_emplace(handle, Held{memory, 0}).first->second.holders;
        return handle;
    }

    // One holder less. False if the handle names nothing.
    bool release(Handle handle) {
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

    // Null if the handle names nothing.
    Physical::Pointer find(Handle handle) const {
        const std::lock_guard lock(mutex_);
        const auto at = held_.find(handle);
        return at == held_.end() ? nullptr : at->second.memory;
    }

  private:
    struct Held {
        Physical::Pointer memory;
        int holders;
    };

    // Protects held_. Memory is never ended while it is held.
    mutable std::mutex mutex_;
    std::map<Handle, Held> held_;
};

} // namespace tracehook::rehearsal::cuda
