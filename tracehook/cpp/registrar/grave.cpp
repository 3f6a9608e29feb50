#include "registrar/grave.h"

#include "registrar/communicator.h"
#include "registrar/gate.h"

#include <algorithm>
#include <set>

namespace tracehook::registrar {

void Grave::bury(const Segment& segment,
                 std::vector<std::shared_ptr<Communicator>> holders) noexcept {
    const std::lock_guard guard(mutex_);
    buried_.push_back({segment, std::move(holders)});
    count_.store(buried_.size(), std::memory_order_release);
}

bool Grave::has(int device) const noexcept {
    const std::lock_guard guard(mutex_);
    const auto is_there = [&](const Segment& segment) { return segment.device == device; };
    return std::ranges::any_of(buried_, is_there, &Buried::segment) ||
           std::ranges::any_of(ending_, is_there);
}

void Grave::work_off_all() noexcept {
    std::set<std::shared_ptr<Communicator>> holders;
    {
        const std::lock_guard guard(mutex_);
        for (const Buried& each : buried_) {
            holders.insert(each.holders.begin(), each.holders.end());
        }
    }
    for (const std::shared_ptr<Communicator>& holder : holders) {
        holder->gate().pass();
    }
    for (const Segment& segment : take_free()) {
        end_(segment);
        const std::lock_guard guard(mutex_);
        std::erase_if(ending_, [&](const Segment& each) { return each.id == segment.id; });
    }
}

std::vector<Segment> Grave::take_free() noexcept {
    std::vector<Segment> free;
    const std::lock_guard guard(mutex_);
    std::erase_if(buried_, [&](Buried& each) {
        std::erase_if(each.holders, [&](const std::shared_ptr<Communicator>& holder) {
            return holder->gate().has_let_go(*holder, each.segment);
        });
        if (each.holders.empty()) {
            free.push_back(each.segment);
        }
        return each.holders.empty();
    });
    ending_.insert(ending_.end(), free.begin(), free.end());
    count_.store(buried_.size(), std::memory_order_release);
    return free;
}

} // namespace tracehook::registrar
