// What every exported function of the driver does besides its work, as runtime_call.h for the
// runtime; and contexts: each device has one, named by its number plus one, so that it is not null.
//
// Any thread. The status codes are the runtime's where both have one.
#pragma once

#include "cuda_abi.h"
#include "devices.h"
#include "faults.h"

namespace tracehook::rehearsal::cuda {

inline constexpr Status kNoContext = kDeviceUninitialized;

inline void* context_of(int device) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
}

inline int device_of(void* context) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
}

// A call of this name begins, which marks CUDA as used by this process. kSuccess,
// kInitializationError (forked child), kNoDevice, or the result of a fault.
inline int enter_driver(const char* call) {
    const Status status = enter_runtime();
    return status == kSuccess ? suffer(call) : status;
}

// Keeps exceptions inside. A body that returns nothing succeeds, here and below.
template <typename Body> int guarded(Body&& body) noexcept {
    try {
        return outcome(body);
    } catch (...) {
        return kMemoryAllocation;
    }
}

// A call about a device, which must exist.
template <typename Body>
int on_device(int device, Body&& body, const char* call = __builtin_FUNCTION()) {
    if (const int status = enter_driver(call); status != kSuccess) {
        return status;
    }
    return in_range(device) ? outcome(body) : kInvalidDevice;
}

} // namespace tracehook::rehearsal::cuda
