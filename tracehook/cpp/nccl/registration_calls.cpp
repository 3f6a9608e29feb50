#include "nccl/registration_calls.h"

#include "cuda/device_wait.h"
#include "cuda/runtime.h"
#include "nccl/group.h"
#include "nccl/traits.h"

#include <cstring>
#include <utility>

namespace tracehook::nccl {

namespace {

Effects on_one_host_effects{};
Effects across_effects{};

} // namespace

void set_effects(const Effects& on_one_host, const Effects& across) noexcept {
    on_one_host_effects = on_one_host;
    across_effects = across;
}

registrar::Outcome NcclRegistrationCalls::register_range(std::uintptr_t address,
                                                         std::size_t size) noexcept {
    registrar::Outcome outcome; // handle null: on some success paths NCCL does not write it
    outcome.result =
        api().ncclCommRegister(comm_, reinterpret_cast<void*>(address), size, &outcome.handle);
    return outcome;
}

int NcclRegistrationCalls::deregister(void* handle) noexcept {
    return api().ncclCommDeregister(comm_, handle);
}

registrar::Effect NcclRegistrationCalls::expected(registrar::MemoryKind memory) const noexcept {
    return (one_host_ ? on_one_host_effects : across_effects)[static_cast<std::size_t>(memory)];
}

// A handle points to NCCL's record of the range. Its first fields are two addresses, two counts,
// and the bits of what NCCL has done with the range: src/include/register.h of 2.27.3 to 2.30.7.
std::optional<std::uint32_t> NcclRegistrationCalls::uses(void* handle) noexcept {
    constexpr std::size_t kState = 24;
    // NVLS_REG_POSSIBLE and NVLS_REG_NO_SUPPORT say that NCCL looked, and no more.
    constexpr std::uint32_t kComplete = 0x01 | 0x02 | 0x10 | 0x20;
    static const bool known = has(Trait::kKnownRecord, version());
    if (!known || !blocking_) {
        return std::nullopt;
    }
    std::uint32_t state = 0;
    std::memcpy(&state, static_cast<const char*>(handle) + kState, sizeof(state));
    return state & kComplete;
}

registrar::Outcome NcclRegistrationCalls::register_window(std::uintptr_t address,
                                                          std::size_t size) noexcept {
    if (api().ncclCommWindowRegister == nullptr) {
        return {};
    }
    if (ThreadGroup::mine().open()) {
        return {kInvalidUsage, nullptr}; // NCCL would write the window at the group's end
    }
    window_ = new Window(nullptr);
    const int result = api().ncclCommWindowRegister(comm_, reinterpret_cast<void*>(address), size,
                                                    window_, kWindowCollSymmetric);
    return result == kInProgress ? registrar::Outcome{registrar::kUnderWay, nullptr}
                                 : registrar::Outcome{result, take_window()};
}

registrar::Outcome NcclRegistrationCalls::finish_window(const registrar::Outcome& begun,
                                                        std::uintptr_t address,
                                                        std::size_t size) noexcept {
    registrar::Outcome outcome = begun;
    if (begun.result == registrar::kUnderWay) {
        int state = kInProgress;
        const int asked = api().ncclCommGetAsyncError(comm_, &state);
        if (asked == kSuccess && state == kInProgress) {
            return begun;
        }
        outcome.result = asked != kSuccess ? asked : state;
        if (outcome.result != kSuccess) {
            return outcome; // NCCL may still write the window
        }
        outcome.handle = take_window();
    }
    if (is_local_handle(outcome.handle, address, size)) {
        api().ncclCommWindowDeregister(comm_, outcome.handle);
        outcome.handle = nullptr;
    }
    return outcome;
}

void* NcclRegistrationCalls::take_window() noexcept {
    Window* const place = std::exchange(window_, nullptr);
    void* const window = *place;
    delete place;
    return window;
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
    if (registration != nullptr && api().ncclCommDeregister(comm_, registration) != kSuccess &&
        registration != handle) {
        left_beside_[handle] = registration;
    }
    return registration == handle;
}

int NcclRegistrationCalls::deregister_window(void* handle) noexcept {
    if (const auto left = left_beside_.find(handle); left != left_beside_.end()) {
        if (const int result = deregister(left->second); result != kSuccess) {
            return result; // the window's memory stays, then
        }
        left_beside_.erase(left);
    }
    return api().ncclCommWindowDeregister(comm_, handle);
}

void NcclRegistrationCalls::synchronize() noexcept {
    cuda::wait_for_device(device_);
}

int NcclRegistrationCalls::remember_device() noexcept {
    return current_device();
}

void NcclRegistrationCalls::restore_device(int device) noexcept {
    // Set only if it moved: cudaSetDevice may create a context, and is not free.
    if (device >= 0 && current_device() != device) {
        cuda::absorbed(api().cudaSetDevice(device));
    }
}

bool NcclRegistrationCalls::ready() noexcept {
    if (blocking_) {
        return true;
    }
    int state = kInProgress;
    return api().ncclCommGetAsyncError(comm_, &state) == kSuccess && state != kInProgress;
}

std::optional<registrar::LibraryMemory> NcclRegistrationCalls::memory() noexcept {
    registrar::LibraryMemory found;
    const auto ask = api().ncclCommMemStats;
    static const bool tells = ask != nullptr && version() >= kFirstThatSuspends;
    if (!tells || ask(comm_, kMemorySuspendable, &found.suspendable) != kSuccess ||
        ask(comm_, kMemoryPersistent, &found.persistent) != kSuccess) {
        return std::nullopt;
    }
    // 2.29.7 subtracts what it never added when it deregisters memory of a peer.
    if (static_cast<std::int64_t>(found.persistent) < 0) {
        found.persistent = 0;
    }
    return found;
}

} // namespace tracehook::nccl
