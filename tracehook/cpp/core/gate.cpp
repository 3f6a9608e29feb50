#include "core/gate.h"

#include "core/registrations.h"

#include <algorithm>
#include <chrono>

namespace tracehook::core {

namespace {

// A register or deregister call is local and short. If one hangs all the same, or is kept out by a
// call that hangs, the abort must still go through: it is what ends the hang.
constexpr auto kAbortPatience = std::chrono::seconds(5);

// A free that waits this long for a call into NCCL to come back is worth a line: somebody's job
// seems to hang.
constexpr auto kStallNotice = std::chrono::seconds(10);

} // namespace

void Gate::join(const std::shared_ptr<Registrations>& member, std::vector<Segment> existing,
                bool suspended) {
    const std::lock_guard guard(mutex_);
    member->pending_ = std::move(existing);
    member->suspended_ = suspended;
    members_.push_back(member);
}

void Gate::queue(Registrations& member, const Segment& segment) noexcept {
    const std::lock_guard guard(mutex_);
    if (!member.dead() && !member.suspended_) {
        member.pending_.push_back(segment);
    }
}

void Gate::poke() noexcept {
    Lock lock(mutex_);
    if (inside_) {
        return; // whoever is inside drains before it lets go
    }
    go_in();
    let_go(lock);
}

bool Gate::wait_inside(Lock& lock, const Registrations& member) noexcept {
    changed_.wait(lock, [&] { return !inside_ || member.dead(); });
    if (member.dead()) {
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
    for (std::size_t i = 0; i < members_.size();) {
        if (members_[i]->pending_.empty() && members_[i]->was_ready()) {
            ++i;
            continue;
        }
        const std::shared_ptr<Registrations> member = members_[i]; // kill() may unlink it meanwhile
        const std::uint64_t deaths = deaths_;
        std::vector<Segment> batch = std::move(member->pending_);
        member->pending_.clear();
        working_ = member.get();
        lock.unlock();
        const bool done = member->register_batch(batch);
        lock.lock();
        done_working();
        if (!done && !member->dead() && !member->suspended_) {
            // Not ready: kept, in order, for the next time somebody passes the gate.
            batch.insert(batch.end(), member->pending_.begin(), member->pending_.end());
            member->pending_ = std::move(batch);
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

void Gate::let_go(Lock& lock) noexcept {
    drain(lock);
    inside_ = false;
    changed_.notify_all();
}

bool Gate::enter(const Registrations& member) noexcept {
    Lock lock(mutex_);
    return wait_inside(lock, member) && work_off(lock, member);
}

bool Gate::enter_soon(const Registrations& member) noexcept {
    Lock lock(mutex_);
    if (inside_ && turns_ == hopeless_turn_) {
        return false;
    }
    if (!changed_.wait_for(lock, kAbortPatience, [&] { return !inside_ || member.dead(); })) {
        hopeless_turn_ = turns_;
        return false;
    }
    return wait_inside(lock, member) && work_off(lock, member);
}

// Inside: the queue first. False, and outside again, if `member` is dead by then.
bool Gate::work_off(Lock& lock, const Registrations& member) noexcept {
    drain(lock);
    if (member.dead()) {
        let_go(lock); // it died while its queue was worked off
        return false;
    }
    return true;
}

void Gate::leave() noexcept {
    Lock lock(mutex_);
    let_go(lock);
}

bool Gate::begin_calls(const Registrations& member) noexcept {
    const std::lock_guard guard(mutex_);
    if (member.dead()) {
        return false;
    }
    working_ = &member;
    return true;
}

void Gate::end_calls() noexcept {
    const std::lock_guard guard(mutex_);
    done_working();
}

void Gate::withdraw(Registrations& member, const Segment& segment) noexcept {
    Lock lock(mutex_);
    bool said = false;
    const auto is_segment = [&](const Segment& other) { return other.id == segment.id; };
    for (;;) {
        // Looked at again after each wait: a batch that found the communicator not ready was put
        // back.
        if (std::erase_if(member.pending_, is_segment) != 0 || member.dead()) {
            return;
        }
        if (!inside_) {
            break;
        }
        if (changed_.wait_for(lock, kStallNotice) == std::cv_status::timeout && !said) {
            said = true;
            lock.unlock();
            member.log_stall(segment);
            lock.lock();
        }
    }
    go_in();
    working_ = &member;
    lock.unlock();
    member.deregister(segment);
    lock.lock();
    done_working();
    let_go(lock);
}

void Gate::suspend(Registrations& member) noexcept {
    Lock lock(mutex_);
    member.suspended_ = true;
    member.pending_.clear();
    if (!wait_inside(lock, member)) {
        return;
    }
    member.pending_.clear();
    working_ = &member;
    lock.unlock();
    member.deregister_all();
    lock.lock();
    done_working();
    let_go(lock);
}

void Gate::resume(Registrations& member, std::vector<Segment> existing) noexcept {
    const std::lock_guard guard(mutex_);
    if (member.suspended_ && !member.dead()) {
        member.suspended_ = false;
        member.pending_ = std::move(existing);
    }
}

void Gate::unlink(const Registrations& member) noexcept {
    std::erase_if(members_, [&](const auto& other) { return other.get() == &member; });
    ++deaths_;
}

Gate::End Gate::retire(Registrations& member) noexcept {
    Lock lock(mutex_);
    if (!wait_inside(lock, member)) {
        return {false, 0};
    }
    member.pending_.clear();
    lock.unlock();
    member.deregister_all_windows();
    lock.lock();
    std::size_t undone = 0;
    if (!member.dead()) {
        working_ = &member;
        lock.unlock();
        undone = member.deregister_all();
        lock.lock();
        done_working();
    }
    const bool first = !member.dead_.exchange(true, std::memory_order_acq_rel);
    unlink(member);
    let_go(lock);
    return {first, undone};
}

Gate::End Gate::kill(Registrations& member) noexcept {
    Lock lock(mutex_);
    const bool first = !member.dead_.exchange(true, std::memory_order_acq_rel);
    member.pending_.clear();
    changed_.notify_all();
    const bool quiet = changed_.wait_for(lock, kAbortPatience, [&] { return working_ != &member; });
    unlink(member);
    return {first, first && quiet ? member.forget_all() : 0};
}

} // namespace tracehook::core
