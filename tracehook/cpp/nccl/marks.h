// How far the devices of this process have come in its calls into NCCL: an event on the stream
// before each call, of which the last ones are kept. A device that runs one kernel without end has
// not come to the calls behind it, though the program has made them.
//
// The ring's file gets the answer: while the program stands still, the records of calls to which a
// device has not come are marked `ahead`.
#pragma once

#include "events/calls.h"
#include "nccl/abi.h"

#include <cstdint>

namespace tracehook::nccl {

// Whether somebody looks: without a log nobody does, and no call needs a mark.
bool marks_are_looked_at() noexcept;

// By the thread that makes the call, before NCCL has it, on a stream that is not captured. Never
// waits.
void mark(events::CallRecord& record, Stream stream) noexcept;

// By one thread, twice a second, which holds nothing: after a second without a call asks the
// devices, and says what they answer for two seconds: who is only slow is not told. If a device has
// not come to the oldest call that is kept, nobody knows where it stands, and the calls say that.
void look_at_marks() noexcept;

} // namespace tracehook::nccl
