#include "nccl/group.h"

#include <algorithm>
#include <functional>

namespace tracehook::nccl {

ThreadGroup& ThreadGroup::mine() noexcept {
    static thread_local ThreadGroup group;
    return group;
}

void ThreadGroup::touched(const core::Registrar::Member& member) {
    // Consecutive calls are nearly always on the same communicator; the rest is sorted out at the
    // end.
    if (touched_.empty() || touched_.back() != member) {
        touched_.push_back(member);
    }
}

std::vector<core::Registrar::Member> ThreadGroup::enter_all() {
    std::vector<core::Registrar::Member> members = std::move(touched_);
    touched_.clear();
    const auto gate = [](const core::Registrar::Member& member) { return &member->gate(); };
    std::ranges::sort(members, std::less<>(), gate);
    const auto repeated = std::ranges::unique(members, std::equal_to<>(), gate);
    members.erase(repeated.begin(), repeated.end());
    std::erase_if(members, [](const core::Registrar::Member& member) {
        return !member->gate().enter(*member); // died since: nothing to hold
    });
    return members;
}

void ThreadGroup::leave_all(const std::vector<core::Registrar::Member>& inside) noexcept {
    for (const auto& member : inside) {
        member->gate().leave();
    }
}

void ThreadGroup::completed(int result) noexcept {
    if (result == kInProgress) {
        for (Birth& birth : expected_) {
            birth.blocking =
                false; // whatever its configuration said: NCCL_COMM_BLOCKING overrides it
        }
    } else if (result != kSuccess) {
        expected_.clear(); // NCCL made nothing, and may have left the handles unwritten
    }
}

void ThreadGroup::deliver_all(core::Registrar& registrar) {
    if (expected_.empty()) {
        return;
    }
    std::erase_if(expected_, [&](const Birth& birth) { return deliver(registrar, birth); });
}

} // namespace tracehook::nccl
