// The end of the process: work that is stuck lets go, the summary is written, and broken rules give
// status 86.
#pragma once

namespace tracehook::emulator::nccl {

inline constexpr int kExitRuleBroken = 86;

// True once the process has begun to end; every wait then gives up. Any thread.
bool process_ending();

} // namespace tracehook::emulator::nccl
