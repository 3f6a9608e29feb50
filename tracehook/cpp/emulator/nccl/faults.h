// Faults that a rehearsal injects on purpose: TRACEHOOK_EMU_FAULTS, a comma list of
//
//     ncclCommRegister:fail@3=1                  the 3rd call returns result 1 and does nothing
//     ncclAllReduce:slow@*=50ms                  every call takes 50 ms longer, inside the
//     communicator ncclCommInitRankConfig:in_progress@1=500ms a non-blocking communicator stays in
//     progress that long ncclCommRegister:fail@1=5#rank2            only in the process whose RANK
//     is 2
//
// A duration is a number with us, ms or s. What cannot be read is named on one line of stderr and
// ignored. Any thread, no lock.
#pragma once

#include "names.h"

#include <chrono>
#include <cstdint>

namespace tracehook::emulator::nccl {

struct Fault {
    Result result = kSuccess;            // anything else: return this, do nothing
    std::chrono::microseconds delay{};   // sleep this long first
    std::chrono::microseconds holding{}; // stay in progress this long
};

// What is to go wrong in the `ordinal`th call (from 1) of `name` in this process.
Fault fault_for(const char* name, std::uint64_t ordinal);

} // namespace tracehook::emulator::nccl
