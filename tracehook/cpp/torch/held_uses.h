// Memory of our pools that the program gave back inside of a scope, and that other streams still
// use, stays in use until no scope of the device is open.
//
// From 2.13 on, torch looks in each allocation which streams are done; before, not while any pool
// of the device is begun, and then nothing here is called. When a stream is done depends on the
// device. Whether a tensor of a scope gets that memory must not (windows/pending_blocks.h). So we
// stand in libc10_cuda's slots for cudaEventRecord and cudaEventQuery. The first event that torch
// records while it frees a block of the bank is held: to torch's question it is not ready while a
// scope of the device is open. One event is enough, since torch waits for all events of a block. No
// other event is held, because programs ask for theirs through the same slots (torch.Event).
//
// When the device has no room, torch waits for the events instead of asking, and gets the memory.
// A block that is given back in a capture has no event until the capture ends, and is not held.
#pragma once

#include "windows/bank.h"

#include <cstdint>

namespace tracehook::torch {

// Puts us into the slots; the bank lives as long as the process. Any number of times; a forked
// child's bank takes the place of its parent's. Not with the allocator's lock. False: torch does
// not call through slots, or they cannot be written; then nothing is held.
bool hold_uses(const windows::Bank& bank) noexcept;

// The calling thread is about to free a block outside of a capture; and: it has freed it, or will
// record no event for it. In the allocator's callback, for addresses in the bank's span. A store.
void expect_use(int device, std::uintptr_t address) noexcept;
void expect_no_use() noexcept;

} // namespace tracehook::torch
