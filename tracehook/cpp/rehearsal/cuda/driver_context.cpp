// The driver's functions about contexts: the primary ones of devices, and which a thread uses.
//
// Any thread. In a forked child the functions fail as the runtime's do.
#include "driver_context.h"

#include <atomic>
#include <vector>

namespace tracehook::rehearsal::cuda {
namespace {

// What CUlimit counts: the bytes of a thread's stack, of printf's buffer, and of malloc's heap.
constexpr size_t kLimits = 3;
std::atomic<size_t> limits[kLimits] = {1 << 10, 1 << 20, 8 << 20};

// The devices that the thread used before, oldest first.
std::vector<int>& pushed() {
    thread_local std::vector<int> devices;
    return devices;
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cudaDeviceSynchronize();

EMU_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    return on_device(device, [&] {
        *flags = 0;
        *active = emu_device_active(device);
        return kSuccess;
    });
}

EMU_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
    return on_device(device, [&] {
        emu_device_activate(device);
        *context = context_of(device);
        return kSuccess;
    });
}

EMU_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    return on_device(device, [] { return kSuccess; });
}

EMU_EXPORT int cuCtxGetCurrent(void** context) {
    const int device = emu_current_device();
    *context = emu_device_active(device) != 0 ? context_of(device) : nullptr;
    return emu_driver_enter(__func__);
}

EMU_EXPORT int cuCtxSetCurrent(void* context) {
    // To unset the context is allowed; the runtime would make the device's own again.
    if (context == nullptr) {
        return emu_driver_enter(__func__);
    }
    return on_device(device_of(context), [&] {
        emu_set_current_device(device_of(context));
        return kSuccess;
    });
}

EMU_EXPORT int cuCtxGetDevice(int* device) {
    *device = emu_current_device();
    return emu_device_active(*device) != 0 ? emu_driver_enter(__func__) : kNoContext;
}

EMU_EXPORT int cuCtxPushCurrent_v2(void* context) {
    return on_device(device_of(context), [&] {
        pushed().push_back(emu_current_device());
        emu_set_current_device(device_of(context));
        return kSuccess;
    });
}

EMU_EXPORT int cuCtxPopCurrent_v2(void** context) {
    if (pushed().empty()) {
        return kNoContext;
    }
    if (context != nullptr) {
        *context = context_of(emu_current_device());
    }
    emu_set_current_device(pushed().back());
    pushed().pop_back();
    return emu_driver_enter(__func__);
}

EMU_EXPORT int cuCtxSynchronize() {
    return cudaDeviceSynchronize();
}

EMU_EXPORT int cuCtxGetLimit(size_t* value, unsigned limit) {
    if (limit >= kLimits) {
        return kNotSupported;
    }
    *value = limits[limit];
    return emu_driver_enter(__func__);
}

EMU_EXPORT int cuCtxSetLimit(unsigned limit, size_t value) {
    if (limit >= kLimits) {
        return kNotSupported;
    }
    limits[limit] = value;
    return emu_driver_enter(__func__);
}
