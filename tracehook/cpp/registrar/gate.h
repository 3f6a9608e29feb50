// The gate of a communicator: one thread at a time is inside the library for it.
//
// NCCL's registration cache has no lock of its own, and torch enqueues collectives without one. So
// both the interposed calls and our own register / deregister calls pass here. Communicators that
// share resources (split and shrunk ones may) share one gate.
//
// clang-format off
//   allocator's callback, new segment      queue(), then poke(): never waits
//   allocator's callback, segment freed    forget(); if that is not all, withdraw(): waits until it is
//                                          undone, or the communicator died; not long if the segment
//                                          can be buried (registrar/grave.h)
//   interposed collective, group end       enter() ... leave(): the queue is worked off before and after
//   others' register, deregister           enter_soon() ... leave(): the same, but not for ever
//   interposed destroy, finalize           retire(): deregisters everything, then it is dead
//   interposed suspend, resume             enter(), the call, rest() or wake(), leave()
//   interposed abort, revoke               kill(): dead first; wakes who waits; never waits for a collective
// clang-format on
//
// Births and frees are both queued. Whoever is inside works the queue off before he lets go, frees
// first, so a thread that frees in a loop cannot keep calls out, and calls cannot keep it out. What
// waits for a communicator that is in progress waits outside. A withdrawal that was given up stays
// in the queue: whoever leaves by the long way, or pokes, works the grave off, outside, with no
// lock.
//
// Lock order: the gate's mutex comes after the registrar's and before the ring's. It is never held
// during a call into the communicator; "inside" is a state, not a locked mutex, which is what lets
// kill() reach a communicator whose gate is held by a thread that hangs in NCCL.
//
// The short way: while nothing is queued and nobody waits, a thread goes in and out with one atomic
// exchange each, without the mutex. Whoever locks the mutex then closes the short way, and so
// learns whether somebody went in by it. The last one who unlocks it opens it again, if nothing is
// left to do and nobody is inside.
#pragma once

#include "registrar/patience.h"
#include "registrar/segment.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace tracehook::registrar {

class Communicator;
class Grave;

class Gate {
  public:
    // The grave outlives the gate.
    Gate(const Patience& patience, Grave& grave) noexcept : patience_(patience), grave_(grave) {}
    const Patience& patience() const noexcept { return patience_; }

    // At birth, before anybody else knows the communicator. `existing` waits for the first poke()
    // or enter().
    void join(const std::shared_ptr<Communicator>& communicator, std::vector<Segment> existing,
              bool suspended);

    // Adds a segment that was born and that the communicator does not hold; it is registered by
    // poke(), or by whoever leaves the gate next.
    void queue(Communicator& communicator, const Segment& segment) noexcept;
    void poke() noexcept;

    // Takes a segment that goes from the queue. True if that is all: the communicator does not hold
    // it, or is dead. Never waits. (Which segments it holds changes only while `working_` names
    // it.)
    bool forget(Communicator& communicator, const Segment& segment) noexcept;
    // Waits until the communicator does not hold the segment, or is dead: for the call of the
    // thread inside, which may wait for another rank. However long that takes, unless `buries`:
    // then it returns false after `free_for_call`, or at once behind another such segment, or if
    // the library failed to deregister it. The memory has to stay until has_let_go().
    bool withdraw(Communicator& communicator, const Segment& segment, bool buries) noexcept;
    // Of a segment that withdraw() gave up: whether the library has it no more. Never waits.
    bool has_let_go(Communicator& communicator, const Segment& segment) noexcept;
    // Works the queue off if nobody is inside. Never waits.
    void pass() noexcept;

    // Waits for the gate and registers what is queued. False, and not inside, if `communicator` is
    // dead.
    bool enter(const Communicator& communicator) noexcept;
    // Waits five seconds at most, and not at all where somebody waited so long for the same thread:
    // what undoes a registration before an abort must not wait for what only the abort will end.
    bool enter_soon(const Communicator& communicator) noexcept;
    void leave() noexcept {
        if (!swap_way(Way::kTaken, Way::kOpen)) {
            leave_slowly();
        }
    }
    // Any thread; never waits. False, and not inside, if somebody else is, or `communicator` is
    // dead.
    bool enter_if_free(const Communicator& communicator) noexcept;
    // Whether some thread is inside.
    bool occupied() noexcept;

    // By the thread inside, around calls into `communicator` that are local: a kill() waits for
    // their end (five seconds at most), as it does for those that the gate itself makes. False, and
    // no call may be made, if it is dead.
    bool begin_calls(const Communicator& communicator) noexcept;
    void end_calls() noexcept;

    // Deregisters everything and ignores new segments until resume(). What a communicator that
    // stays in progress keeps is reported, and goes when its segment is freed.
    void suspend(Communicator& communicator) noexcept;
    void resume(Communicator& communicator, std::vector<Segment> existing) noexcept;

    // By the thread inside: the library suspended the communicator, or goes on with it. What is
    // registered stays; what is born in between is registered by whoever leaves after wake().
    void rest(Communicator& communicator) noexcept;
    void wake(Communicator& communicator) noexcept;

    // Each returns the number of registrations it undid (retire) or dropped without a call (kill);
    // false in `first` when somebody else had ended the communicator before.
    struct End {
        bool first;
        std::size_t registrations;
    };
    // Its companion retires too, unless it `stays`.
    End retire(Communicator& communicator, bool stays) noexcept;
    End kill(Communicator& communicator) noexcept;

  private:
    // The mutex. The short way is closed as long as one of these lives, also while it waits.
    class Lock : public std::unique_lock<std::mutex> {
      public:
        explicit Lock(Gate& gate) noexcept;
        ~Lock();
        Lock(const Lock&) = delete;
        Lock& operator=(const Lock&) = delete;

      private:
        Gate& gate_;
    };
    enum class Way : std::uint32_t { kOpen, kTaken, kClosed };

    bool swap_way(Way from, Way to) noexcept {
        return way_.compare_exchange_strong(from, to, std::memory_order_acq_rel,
                                            std::memory_order_relaxed);
    }
    bool enter_slowly(const Communicator& communicator) noexcept;
    bool enter_soon_slowly(const Communicator& communicator) noexcept;
    bool stay_in(const Communicator& communicator) noexcept;
    void leave_slowly() noexcept;
    bool wait_inside(Lock& lock, const Communicator& communicator) noexcept;
    void pass_on(Lock& lock) noexcept;
    bool is_rid_of(Communicator& communicator, const Segment& segment) noexcept;
    void go_in() noexcept;
    bool work_off(Lock& lock, const Communicator& communicator) noexcept;
    void drain(Lock& lock) noexcept;
    bool undo_withdrawn(Lock& lock, Communicator& communicator) noexcept;
    bool register_pending(Lock& lock, Communicator& communicator) noexcept;
    std::size_t undo_all(Lock& lock, Communicator& communicator) noexcept;
    void has_work() noexcept { idle_ = false; }
    void done_working() noexcept;
    void release(Lock& lock) noexcept;
    void unlink(const Communicator& communicator) noexcept;

    const Patience patience_;
    Grave& grave_;
    std::atomic<Way> way_{Way::kOpen}; // taken: somebody is inside, and only this says so
    std::mutex mutex_;                 // everything below
    std::condition_variable
        changed_;   // the gate became free, a communicator died, or `working_` moved on
    int locks_ = 0; // that live
    bool inside_ = false;
    bool idle_ = true;                // nothing is queued, and all communicators were ready
    int next_ = 0;                    // threads that wait to go in, and will work the queue off
    std::uint64_t turns_ = 0;         // counts threads that went in
    std::uint64_t hopeless_turn_ = 0; // the one for which somebody waited in vain
    const Communicator* working_ =
        nullptr; // whose registrations the thread inside is changing right now
    std::vector<std::shared_ptr<Communicator>> communicators_;
    std::uint64_t deaths_ = 0; // counts changes of `communicators_` while somebody walks it
};

} // namespace tracehook::registrar
