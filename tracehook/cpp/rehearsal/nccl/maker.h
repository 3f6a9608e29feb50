// A mark for the rehearsal: this process has torch, was told to log, and makes communicators.
//
// The hook cannot say itself that it never started. With the mark, `tracehook rehearse --log` knows
// in which processes it had to.
#pragma once

namespace tracehook::rehearsal::nccl {

// Called at the birth of each communicator, by any thread. Leaves the file `maker.<pid>`, with the
// directory of SYMM_REGISTER_LOG in it, once a process.
void note_maker();

} // namespace tracehook::rehearsal::nccl
