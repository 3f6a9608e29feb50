#include "nccl/communicator.h"

namespace tracehook::nccl {

core::Outcome NcclCommunicator::register_range(std::uintptr_t address, std::size_t size) noexcept {
    core::Outcome outcome; // handle null: on some success paths NCCL does not write it
    outcome.result =
        api().ncclCommRegister(comm_, reinterpret_cast<void*>(address), size, &outcome.handle);
    return outcome;
}

int NcclCommunicator::deregister(void* handle) noexcept {
    return api().ncclCommDeregister(comm_, handle);
}

int NcclCommunicator::remember_device() noexcept {
    return current_device();
}

void NcclCommunicator::restore_device(int device) noexcept {
    // Set only if it moved: cudaSetDevice may create a context, and is not free.
    if (device >= 0 && current_device() != device) {
        api().cudaSetDevice(device);
    }
}

bool NcclCommunicator::ready() noexcept {
    if (blocking_) {
        return true;
    }
    int state = kInProgress;
    return api().ncclCommGetAsyncError(comm_, &state) == kSuccess && state != kInProgress;
}

} // namespace tracehook::nccl
