// Contexts of the driver: each device has one, named by its number plus one, so that it is not
// null.
#pragma once

#include "cuda_abi.h"
#include "device.h"
#include "driver_support.h"

namespace tracehook::rehearsal::cuda {

inline constexpr int kNoContext = 201;

inline void* context_of(int device) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
}

inline int device_of(void* context) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
}

// A call about a device, which must exist.
template <typename Body>
int on_device(int device, Body&& body, const char* call = __builtin_FUNCTION()) {
    if (const int status = emu_driver_enter(call); status != kSuccess) {
        return status;
    }
    return device < 0 || device >= emu_device_count() ? kInvalidDevice : body();
}

} // namespace tracehook::rehearsal::cuda
