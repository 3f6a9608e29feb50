#include "registrar/gate.h"

#include "registrar/communicator.h"
#include "registrar/grave.h"

#include <chrono>

namespace tracehook::registrar {

namespace {

// How often a free asks a communicator that is in progress.
constexpr auto kFreePoll = std::chrono::microseconds(50);

// Returns how many there were.
std::size_t take(auto& queue, const Segment& segment) noexcept {
    return std::erase_if(queue, [&](const Segment& each) { return each.id == segment.id; });
}

} // namespace

Gate::Lock::Lock(Gate& gate) noexcept : std::unique_lock<std::mutex>(gate.mutex_), gate_(gate) {
    ++gate_.locks_;
    if (gate_.way_.exchange(Way::kClosed, std::memory_order_acq_rel) == Way::kTaken) {
        gate_.go_in();
    }
}

Gate::Lock::~Lock() {
    if (--gate_.locks_ == 0 && !gate_.inside_ && gate_.idle_) {
        gate_.way_.store(Way::kOpen, std::memory_order_release);
    }
}

void Gate::join(const std::shared_ptr<Communicator>& communicator, std::vector<Segment> existing,
                bool suspended) {
    const Lock lock(*this);
    communicator->pending_ = std::move(existing);
    communicator->suspended_ = suspended;
    communicators_.push_back(communicator);
    has_work();
}

void Gate::queue(Communicator& communicator, const Segment& segment) noexcept {
    const Lock lock(*this);
    if (!communicator.dead() && !communicator.suspended_) {
        communicator.pending_.push_back(segment);
        has_work();
    }
}

void Gate::poke() noexcept {
    pass();
    grave_.work_off();
}

void Gate::pass() noexcept {
    Lock lock(*this);
    if (inside_ || next_ != 0) {
        return; // whoever is inside, or goes in next, works the queue off
    }
    go_in();
    release(lock);
}

bool Gate::wait_inside(Lock& lock, const Communicator& communicator) noexcept {
    if (inside_) {
        ++next_;
        changed_.wait(lock, [&] { return !inside_ || communicator.dead(); });
        --next_;
    }
    if (communicator.dead()) {
        pass_on(lock);
        return false;
    }
    go_in();
    return true;
}

// Outside, with the mutex: somebody waited for the gate and does not go in. He must not leave
// behind what others queued because he would.
void Gate::pass_on(Lock& lock) noexcept {
    if (!inside_ && next_ == 0 && !idle_) {
        go_in();
        release(lock);
    }
}

void Gate::go_in() noexcept {
    inside_ = true;
    ++turns_;
}

// Called inside, with the mutex; gives the mutex up around each run of calls.
void Gate::drain(Lock& lock) noexcept {
    if (idle_) {
        return;
    }
    idle_ = true; // until somebody queues something, or something stays queued
    for (std::size_t i = 0; i < communicators_.size();) {
        if (!communicators_[i]->has_work()) {
            ++i;
            continue;
        }
        const std::shared_ptr<Communicator> communicator =
            communicators_[i]; // kill() may unlink it meanwhile
        const std::uint64_t deaths = deaths_;
        const bool undone = undo_withdrawn(lock, *communicator);
        const bool done = register_pending(lock, *communicator) && undone;
        if (!done) {
            has_work();
        }
        // Others may have got new segments, or moved up, while the mutex was free: from the start
        // again, unless this one is merely not ready, which would be asked for ever.
        i = done || deaths != deaths_ ? 0 : i + 1;
    }
}

// The two halves of drain(): false if something stays queued, because the communicator is not
// ready.
bool Gate::undo_withdrawn(Lock& lock, Communicator& communicator) noexcept {
    bool all = true;
    std::vector<Communicator::Withdrawn>& queue = communicator.withdrawn_;
    for (std::size_t i = 0; i < queue.size() && !communicator.dead();) {
        const Communicator::Withdrawn segment = queue[i];
        // A batch that found the communicator not ready was put back.
        take(communicator.pending_, segment);
        working_ = &communicator;
        lock.unlock();
        const bool done = communicator.deregister(segment, segment.keeps);
        lock.lock();
        done_working();
        if (communicator.dead()) {
            break; // the queue is gone
        }
        if (done) {
            take(queue, segment);
            communicator.gave_up_ &= !queue.empty();
        }
        i += done ? 0 : 1;
        all = all && done;
    }
    return all;
}

bool Gate::register_pending(Lock& lock, Communicator& communicator) noexcept {
    if (communicator.dead() || communicator.rests() ||
        (communicator.pending_.empty() && communicator.was_ready())) {
        return true;
    }
    std::vector<Segment> batch = std::move(communicator.pending_);
    communicator.pending_.clear();
    working_ = &communicator;
    lock.unlock();
    const bool done = communicator.register_batch(batch);
    lock.lock();
    done_working();
    if (!done && !communicator.dead() && !communicator.suspended_) {
        // Not ready: kept, in order, for the next time somebody passes the gate.
        batch.insert(batch.end(), communicator.pending_.begin(), communicator.pending_.end());
        communicator.pending_ = std::move(batch);
    }
    return done;
}

// Inside. Waits for the device first: its collectives use what is undone here. The segments live
// on, so only the gate keeps others from giving the device more that uses them. For NCCL this wait
// is no call, so a kill() does not wait for its end.
std::size_t Gate::undo_all(Lock& lock, Communicator& communicator) noexcept {
    if (communicator.holds_any()) {
        lock.unlock();
        communicator.wait_for_device();
        lock.lock();
        if (communicator.dead()) {
            return 0;
        }
    }
    working_ = &communicator;
    lock.unlock();
    const std::size_t undone = communicator.deregister_all();
    lock.lock();
    done_working();
    communicator.left_over_ = !communicator.dead() && communicator.holds_any();
    return undone;
}

// With the mutex. A kill() may wait for just this, and must not wait for the draining that follows;
// and a free, for what else the thread inside does.
void Gate::done_working() noexcept {
    working_ = nullptr;
    changed_.notify_all();
}

void Gate::release(Lock& lock) noexcept {
    drain(lock);
    inside_ = false;
    changed_.notify_all();
}

bool Gate::enter_slowly(const Communicator& communicator) noexcept {
    Lock lock(*this);
    return wait_inside(lock, communicator) && work_off(lock, communicator);
}

bool Gate::enter_soon_slowly(const Communicator& communicator) noexcept {
    Lock lock(*this);
    if (inside_ && turns_ == hopeless_turn_) {
        return false;
    }
    ++next_;
    const bool came = changed_.wait_for(lock, patience_.others_for_gate,
                                        [&] { return !inside_ || communicator.dead(); });
    --next_;
    if (!came) {
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

bool Gate::enter_if_free(const Communicator& communicator) noexcept {
    const Lock lock(*this);
    if (inside_ || next_ != 0 || communicator.dead()) {
        return false;
    }
    go_in();
    return true;
}

bool Gate::occupied() noexcept {
    const Lock lock(*this);
    return inside_;
}

void Gate::leave_slowly() noexcept {
    {
        Lock lock(*this);
        release(lock);
    }
    grave_.work_off();
}

bool Gate::begin_calls(const Communicator& communicator) noexcept {
    const Lock lock(*this);
    if (communicator.dead()) {
        return false;
    }
    working_ = &communicator;
    return true;
}

void Gate::end_calls() noexcept {
    const Lock lock(*this);
    done_working();
}

bool Gate::forget(Communicator& communicator, const Segment& segment) noexcept {
    const Lock lock(*this);
    if (communicator.dead()) {
        return true;
    }
    const bool queued = take(communicator.pending_, segment) != 0;
    // Somebody may be registering it now. Then only the queue can tell: what is queued is not held,
    // unless a suspend() left it.
    return working_ == &communicator ? queued && !communicator.left_over_
                                     : !communicator.holds(segment);
}

// With the mutex. What is queued of the segment goes with it: it may only have looked as if it were
// held, when a batch that found the communicator not ready was put back.
bool Gate::is_rid_of(Communicator& communicator, const Segment& segment) noexcept {
    if (communicator.dead()) {
        return true;
    }
    if (working_ == &communicator || communicator.holds(segment)) {
        return false;
    }
    take(communicator.pending_, segment);
    take(communicator.withdrawn_, segment);
    communicator.gave_up_ &= !communicator.withdrawn_.empty();
    return true;
}

bool Gate::has_let_go(Communicator& communicator, const Segment& segment) noexcept {
    const Lock lock(*this);
    // An abort only drops the records: the library lets go while that call runs.
    return communicator.dead()
               ? communicator.gone() || (communicator.retired_ && !communicator.holds(segment))
               : is_rid_of(communicator, segment);
}

bool Gate::withdraw(Communicator& communicator, const Segment& segment, bool buries) noexcept {
    using Clock = std::chrono::steady_clock;
    Lock lock(*this);
    communicator.withdrawn_.push_back({segment, buries});
    has_work();
    const Clock::time_point begin = Clock::now();
    const Clock::time_point notice =
        begin + (buries ? patience_.free_for_call : patience_.free_until_notice);
    bool said = false;
    while (!is_rid_of(communicator, segment)) {
        const bool alone = !inside_ && next_ == 0;
        if (alone) {
            go_in();
            release(lock);
            if (is_rid_of(communicator, segment)) {
                break;
            }
        }
        if (buries && working_ != &communicator && communicator.is_stuck(segment)) {
            return false;
        }
        if (buries && (communicator.gave_up_ || Clock::now() >= notice)) {
            communicator.gave_up_ = true;
            return false;
        }
        if (alone) {
            changed_.wait_for(lock, kFreePoll); // not ready: waits outside, so that calls pass
        } else if (said) {
            changed_.wait(lock);
        } else {
            changed_.wait_until(lock, notice);
        }
        if (!buries && !said && Clock::now() >= notice && !is_rid_of(communicator, segment)) {
            said = true;
            lock.unlock();
            communicator.log_stall(segment);
            lock.lock();
        }
    }
    return true;
}

void Gate::suspend(Communicator& communicator) noexcept {
    Lock lock(*this);
    communicator.suspended_ = true;
    communicator.pending_.clear();
    if (!wait_inside(lock, communicator)) {
        return;
    }
    communicator.pending_.clear();
    undo_all(lock, communicator);
    release(lock);
}

void Gate::resume(Communicator& communicator, std::vector<Segment> existing) noexcept {
    const Lock lock(*this);
    if (communicator.suspended_ && !communicator.dead()) {
        communicator.suspended_ = false;
        communicator.pending_ = std::move(existing);
        has_work();
    }
}

void Gate::rest(Communicator& communicator) noexcept {
    const Lock lock(*this);
    communicator.rests_.store(true, std::memory_order_release);
}

void Gate::wake(Communicator& communicator) noexcept {
    const Lock lock(*this);
    communicator.rests_.store(false, std::memory_order_release);
    has_work();
}

void Gate::unlink(const Communicator& communicator) noexcept {
    std::erase_if(communicators_, [&](const auto& other) { return other.get() == &communicator; });
    ++deaths_;
}

Gate::End Gate::retire(Communicator& communicator, bool stays) noexcept {
    Lock lock(*this);
    if (!wait_inside(lock, communicator)) {
        return {false, 0};
    }
    communicator.pending_.clear();
    if (!stays) {
        lock.unlock();
        communicator.companion().retire();
        lock.lock();
    }
    std::size_t undone = 0;
    if (!communicator.dead()) {
        undone = undo_all(lock, communicator);
    }
    const bool first = !communicator.dead_.exchange(true, std::memory_order_acq_rel);
    communicator.retired_ = first;
    communicator.withdrawn_.clear();
    unlink(communicator);
    release(lock);
    return {first, undone};
}

Gate::End Gate::kill(Communicator& communicator) noexcept {
    Lock lock(*this);
    const bool first = !communicator.dead_.exchange(true, std::memory_order_acq_rel);
    communicator.pending_.clear();
    communicator.withdrawn_.clear();
    changed_.notify_all();
    const bool quiet = changed_.wait_for(lock, patience_.abort_for_call,
                                         [&] { return working_ != &communicator; });
    unlink(communicator);
    return {first, first && quiet ? communicator.give_up_records() : 0};
}

} // namespace tracehook::registrar
