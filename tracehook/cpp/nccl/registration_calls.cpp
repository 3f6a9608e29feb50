#include "nccl/registration_calls.h"

#include "nccl/device_wait.h"
#include "nccl/traits.h"

#include <chrono>
#include <thread>

namespace tracehook::nccl {

core::Outcome NcclRegistrationCalls::register_range(std::uintptr_t address,
                                                    std::size_t size) noexcept {
    core::Outcome outcome; // handle null: on some success paths NCCL does not write it
    outcome.result =
        api().ncclCommRegister(comm_, reinterpret_cast<void*>(address), size, &outcome.handle);
    return outcome;
}

int NcclRegistrationCalls::deregister(void* handle) noexcept {
    return api().ncclCommDeregister(comm_, handle);
}

core::Outcome NcclRegistrationCalls::register_window(std::uintptr_t address,
                                                     std::size_t size) noexcept {
    if (api().ncclCommWindowRegister == nullptr) {
        return {};
    }
    // A non-blocking communicator writes the window from a thread of its own, later: should it die
    // first, the place has to outlive us.
    auto* const window = new Window(nullptr);
    core::Outcome outcome;
    outcome.result = api().ncclCommWindowRegister(comm_, reinterpret_cast<void*>(address), size,
                                                  window, kWindowCollSymmetric);
    while (outcome.result == kInProgress) {
        int state = kInProgress;
        const int asked = api().ncclCommGetAsyncError(comm_, &state);
        outcome.result = asked != kSuccess ? asked : state;
        if (outcome.result == kInProgress) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        } else if (outcome.result != kSuccess) {
            return outcome;
        }
    }
    outcome.handle = *window;
    delete window;
    if (outcome.result == kSuccess && is_local_handle(outcome.handle, address, size)) {
        api().ncclCommWindowDeregister(comm_, outcome.handle);
        outcome.handle = nullptr;
    }
    return outcome;
}

// The address of a local registration in disguise is that of the registration which the range has.
bool NcclRegistrationCalls::is_local_handle(void* handle, std::uintptr_t address,
                                            std::size_t size) noexcept {
    static const bool possible = has(Trait::kLocalInDisguise, version());
    if (handle == nullptr || !possible) {
        return false;
    }
    void* registration = nullptr;
    if (api().ncclCommRegister(comm_, reinterpret_cast<void*>(address), size, &registration) !=
        kSuccess) {
        return false;
    }
    if (registration != nullptr) {
        api().ncclCommDeregister(comm_, registration);
    }
    return registration == handle;
}

int NcclRegistrationCalls::deregister_window(void* handle) noexcept {
    return api().ncclCommWindowDeregister(comm_, handle);
}

void NcclRegistrationCalls::synchronize() noexcept {
    wait_for_device(device_);
}

int NcclRegistrationCalls::remember_device() noexcept {
    return current_device();
}

void NcclRegistrationCalls::restore_device(int device) noexcept {
    // Set only if it moved: cudaSetDevice may create a context, and is not free.
    if (device >= 0 && current_device() != device) {
        api().cudaSetDevice(device);
    }
}

bool NcclRegistrationCalls::ready() noexcept {
    if (blocking_) {
        return true;
    }
    int state = kInProgress;
    return api().ncclCommGetAsyncError(comm_, &state) == kSuccess && state != kInProgress;
}

} // namespace tracehook::nccl
