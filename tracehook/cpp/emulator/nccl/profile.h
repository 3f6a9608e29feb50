// What the emulated version of NCCL does with windows: versions differ, and jobs rely on it.
//
// Two versions are modelled, 2.28.9 and 2.30.7; any other number behaves as the last one below it
// that changed something. Any thread, no lock.
#pragma once

namespace tracehook::emulator::nccl {

struct Profile {
    bool one_buffer_is_enough; // 2.29: a gather needs only its receive buffer in a window, a
                               // reduce-scatter only its send buffer
    bool null_if_unsupported;  // 2.29.2: before, a local registration in place of a window
    bool several_handles;      // 2.30: a window may lie on several mapped handles
    bool sizes_may_differ;     // 2.30.7: before, the mapping of the other ranks' memory fails
    bool remaps_known_memory;  // 2.30.7: before, memory that is mapped is not exchanged again
    bool works_in_capture;     // 2.30.7: before, the capture is invalidated
};

const Profile& profile();

} // namespace tracehook::emulator::nccl
