// Which calls are faster on registered memory, and giving NCCL the registered address of their
// buffers.
//
// The rule looks at what all ranks of a call have alike: the operation, the bytes, and whether the
// call is captured. Where some ranks of a call used registered memory and others did not, NCCL
// waits for ever or hands over wrong data (docs/verification.md).
//
// By the thread inside the gate of the communicator, just before the call.
#pragma once

#include "nccl/abi.h"
#include "nccl/api.h"
#include "nccl/pool_memory.h"
#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

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

// Asks all ranks of a communicator, in Python, whether they run calls on registered memory: false
// if one does not. On the thread that issues the call, with none of our locks and not inside the
// gate. It waits for them, with a deadline. Empty: nobody is asked, and all do.
using CallAgreement = std::function<bool(const registrar::CommunicatorPtr&)>;
void set_call_agreement(CallAgreement agreement);
void ask_ranks(const registrar::CommunicatorPtr& communicator) noexcept;

// Whether the ranks are still to be asked, before a call that gains and that all of them make. A
// rank alone only copies: it is never asked, and registers nothing.
inline bool is_to_ask(const registrar::Registrar& registrar,
                      const registrar::Communicator& communicator, PayingCall call,
                      std::size_t bytes, Stream stream) noexcept {
    const registrar::Identity& who = communicator.identity();
    return who.when == registrar::When::kAtCalls && who.local == registrar::Local::kOurs &&
           who.size > 1 &&
           communicator.registers_at_calls() == registrar::Communicator::Agreed::kNotAsked &&
           registrar.registering() && pays(call, bytes, stream);
}

// From here on NCCL took a protocol that uses a registration in every call that we measured. Below,
// it depends on the call.
inline constexpr std::size_t kSurelyUsed = std::size_t{8} << 20;

// One buffer of a call.
template <typename Pointer>
registrar::Registrar::Buffer buffer_at(Pointer pointer, std::size_t bytes, bool shows) noexcept {
    return {reinterpret_cast<std::uintptr_t>(pointer), bytes, shows && bytes >= kSurelyUsed};
}

template <typename Pointer>
void to_registered(registrar::Registrar& registrar, registrar::Communicator& communicator,
                   registrar::RegisteredFor what, Pointer& buffer, std::size_t bytes) noexcept {
    std::array buffers{buffer_at(buffer, bytes, true)};
    if (registrar.to_registered(communicator, what, buffers)) {
        buffer = reinterpret_cast<Pointer>(buffers[0].address);
    }
}

// Whether the settings may let NCCL's copy engine take what else becomes messages: NCCL_CTA_POLICY.
bool copies_exchanges() noexcept;
inline constexpr int kCopiesToOneWindow = 22902; // from this version on if only the output has one

// From how many bytes on NCCL may use a registration of a transfer's buffer: below, it copies.
inline constexpr std::size_t kLeastUsed = std::size_t{64} << 10;

// A buffer of a call that only some ranks may make from the memory of a scope: see
// Registrar::unregistered(). It is registered where it has a window, and where every segment is. If
// the call gains, the buffer is registered: in a window it is so already.
template <typename Pointer>
void place_alone(registrar::Registrar& registrar, registrar::Communicator& communicator,
                 Pointer& buffer, std::size_t bytes, bool gains, Stream stream) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer);
    const bool in_window = bytes >= kLeastUsed && windows::table_of(communicator).engaged() &&
                           windows::table_of(communicator).covering(address, bytes).has_value();
    const registrar::Identity& who = communicator.identity();
    const bool all_are =
        who.local == registrar::Local::kObserved || who.when == registrar::When::kAtBirth;
    const bool is_registered = all_are && bytes >= kLeastUsed && may_be_of_pools(address);
    if ((in_window || is_registered) && !gains) {
        buffer = reinterpret_cast<Pointer>(
            registrar.unregistered(communicator, address, bytes, capturing(stream)));
    } else if (gains && !in_window) {
        to_registered(registrar, communicator, registrar::RegisteredFor::kTransfers, buffer, bytes);
    }
}

// Before 2.29 NCCL wants both buffers of a gather to be registered, and marks the output alone.
template <typename Send, typename Receive>
void to_registered(registrar::Registrar& registrar, registrar::Communicator& communicator,
                   registrar::RegisteredFor what, Send& send, std::size_t sent, bool send_shows,
                   Receive& receive, std::size_t received) noexcept {
    std::array buffers{buffer_at(send, sent, send_shows), buffer_at(receive, received, true)};
    if (registrar.to_registered(communicator, what, buffers)) {
        send = reinterpret_cast<Send>(buffers[0].address);
        receive = reinterpret_cast<Receive>(buffers[1].address);
    }
}

} // namespace tracehook::nccl
