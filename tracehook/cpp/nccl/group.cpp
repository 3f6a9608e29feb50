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
    std::ranges::sort(members, std::less<>(), [](const auto& member) { return &member->gate(); });
    std::vector<core::Registrar::Member> inside;
    for (const core::Registrar::Member& member : members) {
        if (!inside.empty() && &inside.back()->gate() == &member->gate()) {
            continue; // held already, for a sibling or for an earlier call
        }
        // One that died since has nothing to hold; a living sibling behind the same gate is tried
        // next.
        if (member->gate().enter(*member)) {
            inside.push_back(member);
        }
    }
    return inside;
}

void ThreadGroup::leave_all(const std::vector<core::Registrar::Member>& inside) noexcept {
    for (const auto& member : inside) {
        member->gate().leave();
    }
}

void ThreadGroup::completed(int result) noexcept {
    const auto first = expected_.begin() + static_cast<std::ptrdiff_t>(expected_before_);
    if (result == kInProgress) {
        for (auto birth = first; birth != expected_.end(); ++birth) {
            birth->blocking =
                false; // whatever its configuration said: NCCL_COMM_BLOCKING overrides it
        }
    } else if (result != kSuccess) {
        expected_.erase(first,
                        expected_.end()); // NCCL made nothing, and may not have written the handles
    }
}

void ThreadGroup::deliver_all(core::Registrar& registrar) {
    if (expected_.empty()) {
        return;
    }
    std::erase_if(expected_, [&](const Birth& birth) { return deliver(registrar, birth); });
}

} // namespace tracehook::nccl
