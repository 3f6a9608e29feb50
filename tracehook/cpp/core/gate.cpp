#include "core/gate.h"

#include "core/communicator.h"

#include <algorithm>
#include <chrono>

namespace tracehook::core {

namespace {

// A register or deregister call is local and short. If one hangs all the same, or is kept out by a
// call that hangs, the abort must still go through: it is what ends the hang.
constexpr auto kAbortWaitsForCall = std::chrono::seconds(5);

// A registration call of somebody else waits this long for the gate, once. It may be the one that
// torch makes before the abort which alone can free the gate.
constexpr auto kOthersWaitForGate = std::chrono::seconds(5);

// A free that waits this long for a call into NCCL to come back is worth a line: somebody's job
// seems to hang.
constexpr auto kStallNotice = std::chrono::seconds(10);

} // namespace

void Gate::join(const std::shared_ptr<Communicator>& communicator, std::vector<Segment> existing,
                bool suspended) {
    const std::lock_guard guard(mutex_);
    communicator->pending_ = std::move(existing);
    communicator->suspended_ = suspended;
    communicators_.push_back(communicator);
}

void Gate::queue(Communicator& communicator, const Segment& segment) noexcept {
    const std::lock_guard guard(mutex_);
    if (!communicator.dead() && !communicator.suspended_) {
        communicator.pending_.push_back(segment);
    }
}

void Gate::poke() noexcept {
    Lock lock(mutex_);
    if (inside_) {
        return; // whoever is inside drains before it lets go
    }
    go_in();
    release(lock);
}

bool Gate::wait_inside(Lock& lock, const Communicator& communicator) noexcept {
    changed_.wait(lock, [&] { return !inside_ || communicator.dead(); });
    if (communicator.dead()) {
        return false;
    }
    go_in();
    return true;
}

void Gate::go_in() noexcept {
    inside_ = true;
    ++turns_;
}

// Called inside, with the mutex; gives the mutex up around each batch.
void Gate::drain(Lock& lock) noexcept {
    for (std::size_t i = 0; i < communicators_.size();) {
        if (communicators_[i]->pending_.empty() && communicators_[i]->was_ready()) {
            ++i;
            continue;
        }
        const std::shared_ptr<Communicator> communicator =
            communicators_[i]; // kill() may unlink it meanwhile
        const std::uint64_t deaths = deaths_;
        std::vector<Segment> batch = std::move(communicator->pending_);
        communicator->pending_.clear();
        working_ = communicator.get();
        lock.unlock();
        const bool done = communicator->register_batch(batch);
        lock.lock();
        done_working();
        if (!done && !communicator->dead() && !communicator->suspended_) {
            // Not ready: kept, in order, for the next time somebody passes the gate.
            batch.insert(batch.end(), communicator->pending_.begin(), communicator->pending_.end());
            communicator->pending_ = std::move(batch);
        }
        // Others may have got new segments, or moved up, while the mutex was free: from the start
        // again, unless this one is merely not ready, which would be asked for ever.
        i = done || deaths != deaths_ ? 0 : i + 1;
    }
}

// With the mutex. A kill() may wait for just this, and must not wait for the draining that follows.
void Gate::done_working() noexcept {
    const bool is_dead = working_->dead();
    working_ = nullptr;
    if (is_dead) {
        changed_.notify_all();
    }
}

void Gate::release(Lock& lock) noexcept {
    drain(lock);
    inside_ = false;
    changed_.notify_all();
}

bool Gate::enter(const Communicator& communicator) noexcept {
    Lock lock(mutex_);
    return wait_inside(lock, communicator) && work_off(lock, communicator);
}

bool Gate::enter_soon(const Communicator& communicator) noexcept {
    Lock lock(mutex_);
    if (inside_ && turns_ == hopeless_turn_) {
        return false;
    }
    if (!changed_.wait_for(lock, kOthersWaitForGate,
                           [&] { return !inside_ || communicator.dead(); })) {
        hopeless_turn_ = turns_;
        return false;
    }
    return wait_inside(lock, communicator) && work_off(lock, communicator);
}

// Inside: the queue first. False, and outside again, if `communicator` is dead by then.
bool Gate::work_off(Lock& lock, const Communicator& communicator) noexcept {
    drain(lock);
    if (communicator.dead()) {
        release(lock); // it died while its queue was worked off
        return false;
    }
    return true;
}

void Gate::leave() noexcept {
    Lock lock(mutex_);
    release(lock);
}

bool Gate::begin_calls(const Communicator& communicator) noexcept {
    const std::lock_guard guard(mutex_);
    if (communicator.dead()) {
        return false;
    }
    working_ = &communicator;
    return true;
}

void Gate::end_calls() noexcept {
    const std::lock_guard guard(mutex_);
    done_working();
}

void Gate::withdraw(Communicator& communicator, const Segment& segment) noexcept {
    Lock lock(mutex_);
    bool said = false;
    const auto is_segment = [&](const Segment& other) { return other.id == segment.id; };
    for (;;) {
        // Looked at again after each wait: a batch that found the communicator not ready was put
        // back.
        if (std::erase_if(communicator.pending_, is_segment) != 0 || communicator.dead()) {
            return;
        }
        if (!inside_) {
            break;
        }
        if (changed_.wait_for(lock, kStallNotice) == std::cv_status::timeout && !said) {
            said = true;
            lock.unlock();
            communicator.log_stall(segment);
            lock.lock();
        }
    }
    go_in();
    working_ = &communicator;
    lock.unlock();
    communicator.deregister(segment);
    lock.lock();
    done_working();
    release(lock);
}

void Gate::suspend(Communicator& communicator) noexcept {
    Lock lock(mutex_);
    communicator.suspended_ = true;
    communicator.pending_.clear();
    if (!wait_inside(lock, communicator)) {
        return;
    }
    communicator.pending_.clear();
    working_ = &communicator;
    lock.unlock();
    communicator.deregister_all();
    lock.lock();
    done_working();
    release(lock);
}

void Gate::resume(Communicator& communicator, std::vector<Segment> existing) noexcept {
    const std::lock_guard guard(mutex_);
    if (communicator.suspended_ && !communicator.dead()) {
        communicator.suspended_ = false;
        communicator.pending_ = std::move(existing);
    }
}

void Gate::unlink(const Communicator& communicator) noexcept {
    std::erase_if(communicators_, [&](const auto& other) { return other.get() == &communicator; });
    ++deaths_;
}

Gate::End Gate::retire(Communicator& communicator) noexcept {
    Lock lock(mutex_);
    if (!wait_inside(lock, communicator)) {
        return {false, 0};
    }
    communicator.pending_.clear();
    lock.unlock();
    communicator.deregister_all_windows();
    lock.lock();
    std::size_t undone = 0;
    if (!communicator.dead()) {
        working_ = &communicator;
        lock.unlock();
        undone = communicator.deregister_all();
        lock.lock();
        done_working();
    }
    const bool first = !communicator.dead_.exchange(true, std::memory_order_acq_rel);
    unlink(communicator);
    release(lock);
    return {first, undone};
}

Gate::End Gate::kill(Communicator& communicator) noexcept {
    Lock lock(mutex_);
    const bool first = !communicator.dead_.exchange(true, std::memory_order_acq_rel);
    communicator.pending_.clear();
    changed_.notify_all();
    const bool quiet =
        changed_.wait_for(lock, kAbortWaitsForCall, [&] { return working_ != &communicator; });
    unlink(communicator);
    return {first, first && quiet ? communicator.drop_records() : 0};
}

} // namespace tracehook::core
