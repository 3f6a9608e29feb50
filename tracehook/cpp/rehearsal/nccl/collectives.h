// Runs one collective on the thread of its stream: the ranks exchange what they want, read each
// other's buffers, and write their own.
//
// No lock is held. Returns early, having written nothing, if the communicator is stopped while it
// waits.
#pragma once

#include "communicator.h"
#include "operation.h"

namespace tracehook::rehearsal::nccl {

void run_collective(Communicator& communicator, const Operation& operation);

} // namespace tracehook::rehearsal::nccl
