// An ncclComm_t as the registrar sees it. See registrar/registration_calls.h for who may call what,
// and when.
#pragma once

#include "nccl/api.h"
#include "registrar/registration_calls.h"

#include <array>
#include <map>

namespace tracehook::nccl {

// What a registration can do, by the kind of memory: inside a host, and across hosts. Before the
// first communicator.
using Effects = std::array<registrar::Effect, registrar::kMemoryKinds>;
void set_effects(const Effects& on_one_host, const Effects& across) noexcept;

class NcclRegistrationCalls final : public registrar::RegistrationCalls {
  public:
    // `blocking` false: ready() asks NCCL each time. True: NCCL returns from a call when it is done
    // with it.
    NcclRegistrationCalls(Comm comm, int device, bool blocking, bool one_host = false) noexcept
        : comm_(comm), device_(device), blocking_(blocking), one_host_(one_host) {}

    registrar::Outcome register_range(std::uintptr_t address, std::size_t size) noexcept override;
    int deregister(void* handle) noexcept override;
    registrar::Effect expected(registrar::MemoryKind memory) const noexcept override;
    std::optional<std::uint32_t> uses(void* handle) noexcept override;
    registrar::Outcome register_window(std::uintptr_t address, std::size_t size) noexcept override;
    registrar::Outcome finish_window(const registrar::Outcome& begun, std::uintptr_t address,
                                     std::size_t size) noexcept override;
    int deregister_window(void* handle) noexcept override;
    void synchronize() noexcept override;
    int remember_device() noexcept override;
    void restore_device(int device) noexcept override;
    bool ready() noexcept override;
    std::optional<registrar::LibraryMemory> memory() noexcept override;

  private:
    void* take_window() noexcept;
    bool is_local_handle(void* handle, std::uintptr_t address, std::size_t size) noexcept;

    const Comm comm_;
    const int device_;
    const bool blocking_;
    const bool one_host_;
    // Where NCCL writes the window. A non-blocking communicator does so from a thread of its own,
    // later: should it die first, the place has to outlive us.
    Window* window_ = nullptr;
    // By window: a registration of the same range, to see what the window is, that NCCL failed to
    // undo. By the thread inside the gate.
    std::map<void*, void*> left_beside_;
};

} // namespace tracehook::nccl
