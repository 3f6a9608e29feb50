// Waits for all work that was given to a device, in a way that leaves captures alone.
#pragma once

namespace tracehook::nccl {

// Any thread, also while this or another thread captures a stream. Of device -1: the current one.
// Takes as long as the device does.
void wait_for_device(int device) noexcept;

} // namespace tracehook::nccl
