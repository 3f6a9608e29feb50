#include "rehearsal/values/stream.h"

#include "rehearsal/cuda/device.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstdlib>
#include <shared_mutex>
#include <utility>

namespace tracehook::rehearsal::values {
namespace {

// Held shared by work that runs; the end of the process takes it for good, so that PyTorch is not
// used while it goes. Leaked: threads of streams outlive main.
std::shared_timed_mutex& at_work() {
    static auto* const mutex = new std::shared_timed_mutex;
    return *mutex;
}

constexpr std::chrono::seconds kPatience{5};

void run(void* argument) {
    static const int registered =
        std::atexit([] { static_cast<void>(at_work().try_lock_for(kPatience)); });
    static_cast<void>(registered);
    const std::shared_lock lock(at_work(), std::try_to_lock);
    if (lock.owns_lock()) {
        (*static_cast<std::function<void()>*>(argument))();
    }
}

void* handle_of(at::Device device) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    return reinterpret_cast<void*>(guard.getStreamNativeHandle(guard.getStream(device)));
}

} // namespace

void enqueue(at::Device device, std::function<void()> work) {
    const c10::DeviceGuard current(device);
    auto* const argument = new std::function<void()>(std::move(work));
    emu_stream_compute(
        handle_of(device), run,
        [](void* dropped) { delete static_cast<std::function<void()>*>(dropped); }, argument);
}

void wait_for_stream(at::Device device) {
    const c10::DeviceGuard current(device);
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
}

bool is_capturing(at::Device device) {
    const c10::DeviceGuard current(device);
    return emu_stream_capturing(handle_of(device)) != 0;
}

} // namespace tracehook::rehearsal::values
