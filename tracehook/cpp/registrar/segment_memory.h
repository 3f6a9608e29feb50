// What the registrar asks and wants of the device about the memory of a segment.
//
// kind_of() runs in the allocator's callback; so do can_keep() and keep(), on the thread that frees
// the segment. The others run on a thread that holds none of our locks, also in the callback. None
// of them may throw, take the GIL, allocate device memory, call the allocator or wait for another
// rank, but for the device where that is said.
#pragma once

#include "registrar/segment.h"

namespace tracehook::registrar {

class SegmentMemory {
  public:
    virtual ~SegmentMemory() = default;

    virtual MemoryKind kind_of(std::uintptr_t address) noexcept = 0;
    // False if the driver says that nothing is mapped there.
    virtual bool has_memory(std::uintptr_t /*address*/) noexcept { return true; }

    // Maps the segment's memory at a second address, too: its alias. 0 if that cannot be.
    virtual std::uintptr_t map_again(const Segment& segment) noexcept = 0;
    // Waits for the device first, unless that `is_done`. The memory goes when the segment's own
    // mapping goes, too.
    virtual void unmap(const Segment& segment, std::uintptr_t alias, bool is_done) noexcept = 0;

    // Whether the allocator's free of the segment, which follows its event on the same thread, can
    // be kept from freeing the memory; and that it is to be, until let_go(), which may come first.
    virtual bool can_keep(const Segment& /*segment*/) noexcept { return false; }
    virtual void keep(const Segment& /*segment*/) noexcept {}
    // Never waits, also not for the device. Memory that cannot go without that is idle from then
    // on.
    virtual void let_go(const Segment& /*segment*/) noexcept {}
    // Frees what is idle on a device, and waits for it. True if another thread still does so.
    virtual bool free_idle(int /*device*/) noexcept { return false; }
};

} // namespace tracehook::registrar
