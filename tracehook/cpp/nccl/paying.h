// Which calls are faster on registered memory, and giving NCCL the registered address of their
// buffers.
//
// The rule looks at what all ranks of a call have alike: the operation, the bytes, and whether the
// call is captured. Where some ranks of a call used registered memory and others did not, NCCL
// waits for ever or hands over wrong data (docs/verification.md).
//
// By the thread inside the gate of the communicator, just before the call.
#pragma once

#include "core/registrar.h"
#include "nccl/abi.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tracehook::nccl {

enum class PayingCall : std::uint8_t { kAllGather, kAllToAll, kTransfer, kNone };

inline constexpr std::size_t kNeverPays = ~std::size_t{0};

// From how many bytes on a call is faster, called eagerly and captured.
struct Threshold {
    std::atomic<std::size_t> eager{kNeverPays};
    std::atomic<std::size_t> captured{kNeverPays};
    std::atomic<std::size_t> least{kNeverPays};
};
Threshold& threshold(PayingCall call) noexcept;
void set_threshold(PayingCall call, std::size_t eager, std::size_t captured) noexcept;

// Slow: locks, and perhaps calls into the driver and NCCL.
bool pays_for(PayingCall call, std::size_t bytes, Stream stream) noexcept;

// Most calls are small, and cost one load.
inline bool pays(PayingCall call, std::size_t bytes, Stream stream) noexcept {
    return bytes >= threshold(call).least.load(std::memory_order_relaxed) &&
           pays_for(call, bytes, stream);
}

template <typename Pointer>
void to_registered(core::Registrar& registrar, core::Communicator& communicator, Pointer& buffer,
                   std::size_t bytes) noexcept {
    buffer = reinterpret_cast<Pointer>(
        registrar.registered(communicator, reinterpret_cast<std::uintptr_t>(buffer), bytes));
}

// The output of a gather; an input that lies inside it moves with it, or the call would no longer
// be in place.
template <typename Send, typename Receive>
void gather_to_registered(core::Registrar& registrar, core::Communicator& communicator, Send& send,
                          Receive& receive, std::size_t bytes) noexcept {
    const auto before = reinterpret_cast<std::uintptr_t>(receive);
    const auto input = reinterpret_cast<std::uintptr_t>(send);
    to_registered(registrar, communicator, receive, bytes);
    if (input >= before && input < before + bytes) {
        send = reinterpret_cast<Send>(input - before + reinterpret_cast<std::uintptr_t>(receive));
    }
}

} // namespace tracehook::nccl
