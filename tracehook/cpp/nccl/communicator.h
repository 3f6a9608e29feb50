// An ncclComm_t as the registrar sees it. See core/communicator.h for who may call what, and when.
#pragma once

#include "core/communicator.h"
#include "nccl/api.h"

namespace tracehook::nccl {

class NcclCommunicator final : public core::Communicator {
  public:
    // `blocking` false: ready() asks NCCL each time. True: NCCL returns from a call when it is done
    // with it.
    NcclCommunicator(Comm comm, bool blocking) noexcept : comm_(comm), blocking_(blocking) {}

    core::Outcome register_range(std::uintptr_t address, std::size_t size) noexcept override;
    int deregister(void* handle) noexcept override;
    core::Outcome register_window(std::uintptr_t address, std::size_t size) noexcept override;
    int deregister_window(void* handle) noexcept override;
    void synchronize() noexcept override;
    int remember_device() noexcept override;
    void restore_device(int device) noexcept override;
    bool ready() noexcept override;

  private:
    bool is_local_handle(void* handle, std::uintptr_t address, std::size_t size) noexcept;

    const Comm comm_;
    const bool blocking_;
};

} // namespace tracehook::nccl
