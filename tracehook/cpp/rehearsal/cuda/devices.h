// The devices as this process sees them: how many are visible, which one each thread uses, which
// have a context, and whether the process may use CUDA at all.
//
// Every function may be called from any thread and takes no lock. A child of fork() may call them
// too: after a fork that followed the first use of CUDA, `enter_runtime` says "initialization
// error" for ever, as the real runtime does.
#pragma once

#include "cuda_abi.h"

namespace tracehook::rehearsal::cuda {

// Marks CUDA as used by this process. kSuccess, kInitializationError (forked child) or kNoDevice.
Status enter_runtime();

// True in a child forked after the parent used CUDA: locks may be held by threads that do not exist
// there.
bool forked_child();

// The devices that CUDA_VISIBLE_DEVICES leaves, fixed at the first call.
int device_count();
bool in_range(int device); // whether it is one of them

// The physical index of a visible device; `device` must be in range.
int physical_index(int device);

// The calling thread's device. `set_current_device` refuses what is out of range.
int current_device();
bool set_current_device(int device);

// Whether the primary context of a device exists. It is made by the first call that needs one and
// never goes.
bool device_is_active(int device);
void activate_device(int device);

} // namespace tracehook::rehearsal::cuda
