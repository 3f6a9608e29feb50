// Work on one word of memory that streams do in their order: writes, and waits for somebody else's
// write, be it another stream, another process or the CPU.
//
// Any thread; a wait blocks it, and the memory must stay mapped meanwhile. A write releases what
// was done before it to who waits for it, and wakes who sleeps.
#pragma once

#include "driver_support.h"

namespace tracehook::rehearsal::cuda {

using MemoryOperation = emu_memory_operation;

void perform(const MemoryOperation& operation);

} // namespace tracehook::rehearsal::cuda
