// The end of the process: work that is stuck lets go, the summary is written, and broken rules give
// status 86.
#pragma once

namespace tracehook::rehearsal::nccl {

inline constexpr int kExitRuleBroken = 86;

// For on_exit(): ends the process at once, after the summary. What was constructed before on_exit()
// was called is not destroyed.
extern "C" void emu_nccl_end_process(int status, void* unused);

// True once the process has begun to end; every wait then gives up. Any thread.
bool process_ending();

} // namespace tracehook::rehearsal::nccl
