#include "process/symmetric_memory.h"

#include "torch/settling.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace tracehook::process {

namespace {

// Inside the gate for one statement; tells whether the communicator was alive.
class Inside {
  public:
    explicit Inside(registrar::Communicator& communicator)
        : communicator_(communicator), alive_(communicator.gate().enter(communicator)) {}
    ~Inside() {
        if (alive_) {
            communicator_.gate().leave();
        }
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    explicit operator bool() const noexcept { return alive_; }

  private:
    registrar::Communicator& communicator_;
    const bool alive_;
};

} // namespace

std::vector<std::uint64_t>
BoundCommunicator::missing(const std::vector<std::uint64_t>& segments) const {
    std::vector<std::uint64_t> without;
    std::ranges::copy_if(segments, std::back_inserter(without),
                         [&](std::uint64_t segment) { return !table().holds_segment(segment); });
    return without;
}

std::vector<registrar::Outcome>
BoundCommunicator::register_windows(const std::vector<std::uint64_t>& segments, bool capturing) {
    std::vector<windows::PoolSegment> found;
    for (const std::uint64_t id : segments) {
        if (const auto segment = windows().bank().get(id)) {
            found.push_back(*segment);
        }
    }
    const Inside inside(*communicator_);
    return inside && found.size() == segments.size() ? windows().register_windows(found, capturing)
                                                     : std::vector<registrar::Outcome>{};
}

bool BoundCommunicator::confirm_windows() {
    const Inside inside(*communicator_);
    if (inside) {
        windows().confirm_windows();
    } else {
        windows().drop_unconfirmed_windows(); // dead: drops the records only
    }
    return static_cast<bool>(inside);
}

bool BoundCommunicator::wait_for_calls(std::uint64_t next, std::size_t own,
                                       std::chrono::duration<double> patience) {
    constexpr auto kPoll = std::chrono::microseconds(50);
    table().move_fence(windows::Windows::Fence::kRegistration, next);
    const auto begin = std::chrono::steady_clock::now();
    while (table().calls() < next || windows().in_flight(own)) {
        if (communicator_->dead() || std::chrono::steady_clock::now() - begin > patience) {
            return false;
        }
        std::this_thread::sleep_for(kPoll);
    }
    return true;
}

std::size_t BoundCommunicator::drop_windows() {
    const Inside inside(*communicator_);
    return windows().drop_unconfirmed_windows();
}

void BoundCommunicator::undo_window_of_others(std::uintptr_t handle) {
    if (const Inside inside(*communicator_); inside) {
        windows().undo_window_of_others(reinterpret_cast<const void*>(handle));
    }
}

std::size_t BoundCommunicator::deregister_windows(const std::vector<std::uint64_t>& segments) {
    const Inside inside(*communicator_);
    return inside ? windows().deregister_windows(segments) : 0;
}

bool PoolScope::enter(bool graph) {
    const int device = eager_->device();
    const bool is_captured = hook_library_.capturing(device);
    const bool settled =
        !pending_.maybe(device) || is_captured || torch::settle(hook_library_, pending_, device);
    (graph || is_captured ? graph_ : eager_)->enter(owner_);
    return settled;
}

void PoolScope::set_communicators(Communicators communicators) {
    communicators_.resize(communicators.size());
    for (std::size_t index = 0; index < communicators.size() && ends_ > 0; ++index) {
        const auto& before = communicators_[index];
        const auto& now = communicators[index];
        if (now && (!before || &**before != &**now)) {
            // It has not heard of the end that is just now.
            now->table().count_end(before ? 1 : ends_);
        }
    }
    communicators_ = std::move(communicators);
}

void PoolScope::count_end() {
    const std::uint64_t thread = windows::this_thread();
    several_threads_ = several_threads_ || (thread_ != 0 && thread_ != thread);
    thread_ = thread;
    ++ends_;
    for (const std::optional<BoundCommunicator>& communicator : communicators_) {
        if (!communicator) {
            continue;
        }
        windows::Windows& windows = communicator->table();
        // So that also an end at which nothing is new tells of this thread.
        windows.note_caller();
        windows.count_end();
    }
}

std::int64_t PoolScope::ends(std::size_t index) const {
    if (several_threads_) {
        return kUnknown;
    }
    if (index >= communicators_.size()) {
        return ends_;
    }
    const std::optional<BoundCommunicator>& communicator = communicators_[index];
    return communicator ? communicator->table().ends() : ends_;
}

std::vector<std::uint64_t> PoolScope::leave() {
    const windows::ScopeFrame* const scope = windows::ScopeStack::current();
    if (scope == nullptr || scope->owner != owner_ ||
        (!eager_->is_innermost() && !graph_->is_innermost())) {
        if (!eager_->take_out(owner_) && !graph_->take_out(owner_) && !eager_->abandon(owner_)) {
            graph_->abandon(owner_);
        }
        throw std::logic_error(kWrongEnd);
    }
    return (graph_->is_innermost() ? graph_ : eager_)->leave();
}

std::vector<std::uint64_t>
PoolScope::without_window(const std::vector<std::uint64_t>& touched) const {
    std::vector<std::uint64_t> wanted;
    for (const std::uint64_t segment : touched) {
        const bool everywhere = !communicators_.empty() &&
                                std::ranges::all_of(communicators_, [&](const auto& communicator) {
                                    return communicator && !(*communicator)->dead() &&
                                           communicator->table().holds_segment(segment);
                                });
        if (!everywhere) {
            wanted.push_back(segment);
        }
    }
    return wanted;
}

} // namespace tracehook::process
