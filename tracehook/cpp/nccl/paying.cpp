#include "nccl/paying.h"

#include "nccl/api.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace tracehook::nccl {

namespace {

std::array<Threshold, static_cast<std::size_t>(PayingCall::kNone)> thresholds;

// Leaked at each change: another thread may be using the former one.
std::atomic<const CallAgreement*> agreement{nullptr};

} // namespace

Threshold& threshold(PayingCall call) noexcept {
    return thresholds[static_cast<std::size_t>(call)];
}

void set_threshold(PayingCall call, std::size_t eager, std::size_t captured) noexcept {
    Threshold& one = threshold(call);
    one.eager.store(eager, std::memory_order_relaxed);
    one.captured.store(captured, std::memory_order_relaxed);
    one.least.store(std::min(eager, captured), std::memory_order_relaxed);
}

bool pays_for(PayingCall call, std::size_t bytes, Stream stream) noexcept {
    const Threshold& one = threshold(call);
    const std::size_t eager = one.eager.load(std::memory_order_relaxed);
    const std::size_t captured = one.captured.load(std::memory_order_relaxed);
    if (bytes >= std::max(eager, captured)) {
        return true;
    }
    return bytes >= (capturing(stream) ? captured : eager);
}

void set_call_agreement(CallAgreement replacement) {
    agreement.store(new CallAgreement(std::move(replacement)), std::memory_order_release);
}

void ask_ranks(const registrar::CommunicatorPtr& communicator) noexcept {
    const CallAgreement* const ask = agreement.load(std::memory_order_acquire);
    communicator->agree_on_calls(ask == nullptr || !*ask || (*ask)(communicator));
}

bool copies_exchanges() noexcept {
    static const bool is_set = std::getenv("NCCL_CTA_POLICY") != nullptr;
    return is_set;
}

} // namespace tracehook::nccl
