// Faults that a rehearsal injects on purpose: TRACEHOOK_EMU_FAULTS, a comma list of
//
//     ncclCommRegister:fail@3=1                    the 3rd call returns result 1 and does nothing
//     cuMemMap:fail@1=2                            so does tracehook's first call of this name
//     ncclAllReduce:slow@*=50ms                    every call takes 50 ms longer
//     ncclCommInitRankConfig:in_progress@1=500ms   a non-blocking communicator stays in progress
//     ncclCommRegister:fail@1=5#rank2              only in the process whose RANK is 2
//
// Of CUDA's calls only those count that tracehook makes: torch makes many, in an order that nobody
// can rely on. A duration is a number with us, ms or s. What cannot be read is named on one line of
// stderr and ignored. Any thread, no lock.
#pragma once

#include "cuda_abi.h"
#include "device.h"

namespace tracehook::rehearsal::cuda {

// What is to go wrong in this call of CUDA's: sleeps, and returns what the call is to return.
Status suffer(const char* call);

} // namespace tracehook::rehearsal::cuda
