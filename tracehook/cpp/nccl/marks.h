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

// By the thread that makes the call, before NCCL has it. Not on a stream that is captured. Never
// waits. Nothing is done before somebody looks: without a log nobody does.
void mark(events::CallRecord& record, Stream stream) noexcept;

// By one thread, twice a second, which holds nothing: after a second without a call asks the
// devices, and says what they answer for two seconds: who is only slow is not told. Nothing is said
// if a device has not come to the oldest call that is kept.
void look_at_marks() noexcept;

} // namespace tracehook::nccl
