// Waits for all work that was given to a device, in a way that leaves captures alone.
#pragma once

namespace tracehook::cuda {

// Any thread, also while this or another thread captures a stream. Of device -1: the current one.
// Takes as long as the device does, whose work may wait for another rank: not on a thread that can
// hold up that rank. Returns 0, or CUDA's error number: then nothing is known of the device.
int wait_for_device(int device) noexcept;

} // namespace tracehook::cuda
