// Runs the sends and receives of one group on the thread of its stream, all of them making progress
// together.
//
// Messages from one rank to another are matched in the order of the calls. A send is done when it
// has been received: the emulated NCCL keeps no buffer, so a job that relies on one hangs here, as
// it does with large messages on hardware.
#pragma once

#include "communicator.h"
#include "operation.h"

#include <vector>

namespace tracehook::rehearsal::nccl {

void run_transfers(Communicator& communicator, const std::vector<Operation>& operations);

} // namespace tracehook::rehearsal::nccl
