#include "nccl/communicator.h"

namespace tracehook::nccl {

core::Outcome NcclCommunicator::register_range(std::uintptr_t address, std::size_t size) noexcept {
    const DeviceGuard guard;
    core::Outcome outcome; // handle null: on some success paths NCCL does not write it
    outcome.result =
        api().ncclCommRegister(comm_, reinterpret_cast<void*>(address), size, &outcome.handle);
    return outcome;
}

int NcclCommunicator::deregister(void* handle) noexcept {
    const DeviceGuard guard;
    return api().ncclCommDeregister(comm_, handle);
}

bool NcclCommunicator::ready() noexcept {
    if (blocking_) {
        return true;
    }
    int state = kInProgress;
    return api().ncclCommGetAsyncError(comm_, &state) == kSuccess && state != kInProgress;
}

} // namespace tracehook::nccl
