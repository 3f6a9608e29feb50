// The aliases of segments: other addresses of the same memory, which are what tracehook registers,
// one for collectives and one for sends and receives. A third one is never registered.
//
// NCCL decides by a buffer's address whether the buffer is registered. So a call that is faster on
// registered memory gets the alias of its buffer, and a call that is slower gets the buffer's own
// address, which nobody registered. All communicators of a device share the aliases of a segment.
//
// Any thread. The mutex is a leaf, and is never held during a call into the driver.
#pragma once

#include "registrar/segment.h"
#include "registrar/segment_memory.h"

#include <array>
#include <mutex>
#include <vector>

namespace tracehook::registrar {

class Aliases {
  public:
    // `memory` null: no segment has an alias.
    explicit Aliases(SegmentMemory* memory) noexcept : memory_(memory) {}

    // The alias of a segment that lives, made at the first question. 0 if none can be made: that is
    // not tried again. Holds none of our locks.
    // `for_ever`: somebody keeps the alias, so it and the memory stay when the segment goes.
    std::uintptr_t of(const Segment& segment, RegisteredFor what, bool for_ever = false) noexcept;

    bool has(const Segment& segment) noexcept;

    // When no communicator has it registered any more. Waits for the device, unless that `is_done`.
    void drop(const Segment& segment, bool is_done) noexcept;

  private:
    struct Alias {
        bool tried = false;
        std::uintptr_t address = 0;
        bool for_ever = false;
    };
    struct Entry {
        std::uint64_t segment = 0; // its id; 0: nobody's
        std::array<Alias, kRegisteredFor + 1> aliases;
    };
    // With the mutex. Null if the slot is not this segment's.
    Entry* find(const Segment& segment) noexcept;

    SegmentMemory* const memory_;
    std::mutex mutex_;
    std::vector<Entry> by_slot_;
};

} // namespace tracehook::registrar
