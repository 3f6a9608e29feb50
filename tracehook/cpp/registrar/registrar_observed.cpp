// What somebody else registers: see Registrar::observed() and the communicators that it waits in.
#include "registrar/registrar.h"

#include <algorithm>

namespace tracehook::registrar {

bool Registrar::is_observed(const Segment& segment) const noexcept {
    return std::ranges::any_of(by_pointer_, [&](const auto& each) {
        return each.second->identity().local == Local::kObserved && each.second->observes(segment);
    });
}

// The allocator has come back from freeing them: whoever has not deregistered them by now did not.
void Registrar::log_overdue_frees(int device) noexcept {
    std::erase_if(freed_, [&](const auto& each) {
        if (each.first.device != device) {
            return false;
        }
        push_gone(each.first, each.second);
        return true;
    });
}

void Registrar::log_overdue_frees_if_undone() noexcept {
    std::erase_if(freed_, [&](const auto& each) {
        if (is_observed(each.first)) {
            return false;
        }
        push_gone(each.first, each.second);
        return true;
    });
}

void Registrar::observe_born(const Segment& segment) noexcept {
    std::erase_if(unborn_, [&](const auto& each) {
        const auto& [communicator, seen] = each;
        if (communicator->identity().device != segment.device || seen.address != segment.address) {
            return false;
        }
        if (seen.size == segment.size) {
            communicator->observe(segment, seen);
        }
        return true;
    });
}

// What waits still was of no segment. While segments are adopted it may be of one in the snapshot.
void Registrar::drop_unborn(int device) noexcept {
    if (!ledger_.adopting()) {
        std::erase_if(unborn_,
                      [&](const auto& each) { return each.first->identity().device == device; });
    }
}

void Registrar::observed(const CommunicatorPtr& communicator, const Observation& seen) noexcept {
    locked([&] {
        if (communicator->dead()) {
            return;
        }
        const auto segment = ledger_.at(seen.address);
        if (!segment || segment->device != communicator->identity().device) {
            unborn_.emplace_back(communicator, seen);
        } else if (segment->address == seen.address && segment->size == seen.size) {
            communicator->observe(*segment, seen);
        }
    });
}

void Registrar::unobserved(const CommunicatorPtr& communicator, const Observation& seen) noexcept {
    locked([&] {
        if (communicator->unobserve(seen)) {
            log_overdue_frees_if_undone();
        } else {
            std::erase_if(unborn_, [&](const auto& each) {
                return each.first == communicator && each.second.handle == seen.handle;
            });
        }
    });
}

void Registrar::log_overdue() noexcept {
    locked([&] {
        for (const auto& [segment, kind] : freed_) {
            push_gone(segment, kind);
        }
        freed_.clear();
    });
}

// With the mutex, when the communicator ended.
void Registrar::drop_observed(const Communicator& communicator) noexcept {
    std::erase_if(unborn_, [&](const auto& each) { return each.first.get() == &communicator; });
    log_overdue_frees_if_undone();
}

} // namespace tracehook::registrar
