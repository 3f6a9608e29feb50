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
    Handle retain(const Physical::Pointer& memory);

    // One holder less. False if the handle names nothing.
    bool release(Handle handle);

    // Null if the handle names nothing.
    Physical::Pointer find(Handle handle) const;

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
