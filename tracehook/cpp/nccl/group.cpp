#include "nccl/group.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace tracehook::nccl {

namespace {

constexpr std::uint64_t kNoCall = ~std::uint64_t{0}; // a transfer is like no collective

} // namespace

void ThreadGroup::touched(const registrar::CommunicatorPtr& communicator) {
    // Consecutive calls are nearly always on the same communicator; the rest is sorted out at the
    // end.
    if (touched_.empty() || touched_.back() != communicator) {
        touched_.push_back(communicator);
        windows::table_of(*communicator).begin_group();
    }
}

std::size_t ThreadGroup::flights(const registrar::Communicator& communicator) const noexcept {
    return static_cast<std::size_t>(
        std::ranges::count(touched_, &communicator, &registrar::CommunicatorPtr::get));
}

std::vector<registrar::CommunicatorPtr>
ThreadGroup::enter_all(std::vector<registrar::CommunicatorPtr> communicators) {
    std::ranges::sort(communicators, std::less<>(),
                      [](const auto& communicator) { return &communicator->gate(); });
    std::vector<registrar::CommunicatorPtr> inside;
    for (const registrar::CommunicatorPtr& communicator : communicators) {
        if (!inside.empty() && &inside.back()->gate() == &communicator->gate()) {
            continue; // held already, for a sibling or for an earlier call
        }
        // One that died since has nothing to hold; a living sibling behind the same gate is tried
        // next.
        if (communicator->gate().enter(*communicator)) {
            inside.push_back(communicator);
        }
    }
    return inside;
}

void ThreadGroup::leave_all(const std::vector<registrar::CommunicatorPtr>& inside) noexcept {
    for (const auto& communicator : inside) {
        communicator->gate().leave();
    }
}

// Inside all gates that could be entered; who is not inside a gate counts nothing. A group may have
// thousands of calls, so those of one communicator, and of these the alike ones, are made
// neighbours.
void ThreadGroup::tally(const std::vector<registrar::CommunicatorPtr>& inside) noexcept {
    constexpr std::uint64_t kCall = (std::uint64_t{1} << events::Tally::kBucketShift) - 1;
    const auto of = [](const Made& one) {
        return std::pair(one.communicator, one.kind == 0 ? kNoCall : one.kind & kCall);
    };
    std::ranges::sort(made_, std::less<>(), of);
    const auto gate = [](const auto& communicator) { return &communicator->gate(); };
    for (auto one = made_.begin(); one != made_.end(); ++one) {
        events::CallSlot* const calls = one->communicator->calls();
        if (one->kind == 0 || calls == nullptr ||
            std::ranges::find(inside, &one->communicator->gate(), gate) == inside.end()) {
            continue;
        }
        const auto beside = [&](auto is_such) {
            return (one != made_.begin() && is_such(*std::prev(one))) ||
                   (std::next(one) != made_.end() && is_such(*std::next(one)));
        };
        std::uint64_t kind = one->kind;
        if (beside([&](const Made& other) { return other.communicator == one->communicator; })) {
            kind |= events::Tally::kGrouped;
        }
        if (beside([&](const Made& other) { return of(other) == of(*one); })) {
            kind |= events::Tally::kAlike;
        }
        calls->tally(kind, one->nbytes);
    }
}

void ThreadGroup::look_at_new_aliases(
    const std::vector<registrar::CommunicatorPtr>& touched,
    const std::vector<registrar::CommunicatorPtr>& inside) noexcept {
    const auto gate = [](const auto& communicator) { return &communicator->gate(); };
    for (const registrar::CommunicatorPtr& communicator : touched) {
        if (std::ranges::find(inside, &communicator->gate(), gate) != inside.end()) {
            communicator->look_at_new_aliases();
        }
    }
}

void ThreadGroup::completed(int result, registrar::Registrar& registrar) {
    endings_.clear();
    for (Birth& birth : std::exchange(births_, {})) {
        if (result == kInProgress) {
            birth.blocking =
                false; // whatever its configuration said: NCCL_COMM_BLOCKING overrides it
        } else if (result != kSuccess) {
            continue; // NCCL made nothing, and may not have written the handle
        }
        if (birth.has_handle()) {
            deliver(registrar, birth);
        } else if (result == kInProgress) {
            expect_in_progress(std::move(birth));
        }
    }
    if (result == kSuccess || result == kInProgress) {
        deliver_all(registrar);
    }
}

void ThreadGroup::drop_births_of(Comm communicator) noexcept {
    std::erase_if(births_, [&](Birth& birth) { return birth.is_of(communicator); });
    BirthsInProgress::instance().drop(communicator);
}

} // namespace tracehook::nccl
