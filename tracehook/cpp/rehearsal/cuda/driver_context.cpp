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

EMU_EXPORT int cudaDeviceSynchronize();

EMU_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    return on_device(device, [&] {
        *flags = 0;
        *active = device_is_active(device) ? 1 : 0;
    });
}

EMU_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
    return on_device(device, [&] {
        activate_device(device);
        *context = context_of(device);
    });
}

EMU_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    return on_device(device, [] {});
}

EMU_EXPORT int cuCtxGetCurrent(void** context) {
    const int device = current_device();
    *context = device_is_active(device) ? context_of(device) : nullptr;
    return enter_driver(__func__);
}

EMU_EXPORT int cuCtxSetCurrent(void* context) {
    // To unset the context is allowed; the runtime would make the device's own again.
    if (context == nullptr) {
        return enter_driver(__func__);
    }
    return on_device(device_of(context), [&] { set_current_device(device_of(context)); });
}

EMU_EXPORT int cuCtxGetDevice(int* device) {
    *device = current_device();
    return device_is_active(*device) ? enter_driver(__func__) : kNoContext;
}

EMU_EXPORT int cuCtxPushCurrent_v2(void* context) {
    return on_device(device_of(context), [&] {
        pushed().push_back(current_device());
        set_current_device(device_of(context));
    });
}

EMU_EXPORT int cuCtxPopCurrent_v2(void** context) {
    if (pushed().empty()) {
        return kNoContext;
    }
    give(context, context_of(current_device()));
    set_current_device(pushed().back());
    pushed().pop_back();
    return enter_driver(__func__);
}

EMU_EXPORT int cuCtxSynchronize() {
    return cudaDeviceSynchronize();
}

EMU_EXPORT int cuCtxGetLimit(size_t* value, unsigned limit) {
    if (limit >= kLimits) {
        return kNotSupported;
    }
    *value = limits[limit];
    return enter_driver(__func__);
}

EMU_EXPORT int cuCtxSetLimit(unsigned limit, size_t value) {
    if (limit >= kLimits) {
        return kNotSupported;
    }
    limits[limit] = value;
    return enter_driver(__func__);
}

} // namespace tracehook::rehearsal::cuda
