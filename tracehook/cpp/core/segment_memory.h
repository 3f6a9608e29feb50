// What the registrar asks and wants of the device about the memory of a segment.
//
// kind_of() runs in the allocator's callback. The others run on a thread that holds none of our
// locks; unmap() may run in the callback too, on the thread that frees the segment. None of them
// may throw, take the GIL, allocate device memory, call the allocator or wait for another rank.
#pragma once

#include "core/segment.h"

namespace tracehook::core {

class SegmentMemory {
  public:
    virtual ~SegmentMemory() = default;

    virtual MemoryKind kind_of(std::uintptr_t address) noexcept = 0;

    // Maps the segment's memory at a second address, too: its alias. 0 if that cannot be.
    virtual std::uintptr_t map_again(const Segment& segment) noexcept = 0;
    // Waits for the device first. The memory goes when the segment's own mapping goes, too.
    virtual void unmap(const Segment& segment, std::uintptr_t alias) noexcept = 0;
};

} // namespace tracehook::core
