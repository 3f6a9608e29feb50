// One live communicator as the registrar sees it: which segments it has, and which are still to be
// registered.
//
// Three guards. `pending_`, `withdrawn_`, `gave_up_`, `dead_`, `retired_`, `suspended_`,
// `left_over_` belong to the gate's mutex and are touched by Gate only. Any thread may ask atomics
// and `observations_`. Everything else belongs to the thread that is inside the gate, or, after
// death, to the thread that killed the communicator. What a room above keeps with it (companion.h)
// has mutexes of its own.
#pragma once

#include "events/ring.h"
#include "registrar/companion.h"
#include "registrar/gate.h"
#include "registrar/handles.h"
#include "registrar/in_progress.h"
#include "registrar/observations.h"
#include "registrar/registration_calls.h"
#include "registrar/segment.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tracehook::registrar {

// Result of a deregistration that was never made: the communicator did not become ready in time.
// Also of a registration that was not finished when the communicator died.
inline constexpr int kNeverReady = -1;

class Communicator {
  public:
    Communicator(const Identity& identity, std::unique_ptr<RegistrationCalls> calls,
                 std::shared_ptr<Gate> gate, events::Ring& ring,
                 const MakeCompanion& make_companion);

    const Identity& identity() const noexcept { return identity_; }
    Gate& gate() const noexcept { return *gate_; }
    std::shared_ptr<Gate> shared_gate() const noexcept { return gate_; }
    Companion& companion() const noexcept { return *companion_; }
    RegistrationCalls& registration_calls() const noexcept { return *calls_; }

    // Any thread, any time: numbers for status().
    std::size_t held() const noexcept { return held_.load(std::memory_order_relaxed); }
    std::uint64_t made() const noexcept { return made_.load(std::memory_order_relaxed); }
    std::uint64_t undone() const noexcept { return undone_.load(std::memory_order_relaxed); }
    // Of the registrations that were looked at after a call: those that the library used, and those
    // that it did not.
    std::uint64_t in_effect() const noexcept { return in_effect_.load(std::memory_order_relaxed); }
    std::uint64_t in_vain() const noexcept { return in_vain_.load(std::memory_order_relaxed); }
    bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
    bool dead() const noexcept { return dead_.load(std::memory_order_acquire); }
    bool was_ready() const noexcept { return was_ready_.load(std::memory_order_relaxed); }
    // Whether the library has suspended it: then no call of the program may go to it.
    bool rests() const noexcept { return rests_.load(std::memory_order_acquire); }
    // Any thread, without the gate and without the GIL: what the library holds of the device's
    // memory for it. If somebody is inside the gate: what it held when we looked last.
    std::optional<LibraryMemory> memory() noexcept;
    std::optional<LibraryMemory> last_memory() const noexcept;

    // Counts the communicators that were made from this one (split, shrink), from 0.
    std::uint64_t next_child() noexcept {
        return children_.fetch_add(1, std::memory_order_relaxed);
    }

    // Any thread, without the gate: freeing `segment` waits for a thread that is inside.
    void log_stall(const Segment& segment) noexcept;
    // The same: it does not wait any longer, and the segment is buried.
    void log_buried(const Segment& segment) noexcept;
    void log_foreign(std::uintptr_t address, std::size_t size) noexcept; // the first time
    void log_captured(const Segment& segment) noexcept;                  // the first time

    // Where its calls are counted, by the thread inside the gate; null if there is no room.
    events::CallSlot* calls() const noexcept { return calls_counted_.get(); }
    void end_calls(bool aborted) noexcept {
        if (calls_counted_ != nullptr) {
            calls_counted_->end(aborted);
        }
    }

    // Any thread. From then on no call goes to NCCL; `why` is what the caller hears. The first
    // reason stands: false if this is none.
    bool refuse(const std::string& why) noexcept;
    const std::string* refusal() const noexcept { return refusal_.load(std::memory_order_acquire); }
    // Whether a call of the program that uses it is refused: for that reason, or because it rests.
    bool refuses() const noexcept { return rests() || refusal() != nullptr; }

    // Any thread: whether the ranks agreed to run calls on registered memory. They are asked once.
    enum class Agreed : std::uint8_t { kNotAsked, kYes, kRefused };
    Agreed registers_at_calls() const noexcept {
        return registers_at_calls_.load(std::memory_order_acquire);
    }
    void agree_on_calls(bool all) noexcept {
        registers_at_calls_.store(all ? Agreed::kYes : Agreed::kRefused, std::memory_order_release);
    }

    // Any thread: what somebody else did. The segment is the one that the range is, or was.
    void observe(const Segment& segment, const Observation& seen) noexcept;
    std::optional<Segment> unobserve(const Observation& seen) noexcept;
    bool observes(const Segment& segment) const noexcept { return observations_.holds(segment); }

    // Any thread: since when calls are in NCCL that register segments, for status().
    InProgress& segments_in_progress() noexcept { return segments_in_progress_; }
    // Any thread. Says whose event it is, counts it, and pushes it.
    void log(events::Event event) noexcept;

    // --- by the thread inside the gate ---

    // As memory(), and remembers it.
    std::optional<LibraryMemory> look_at_memory() noexcept;
    // Registers each segment of `batch`; stops early if the communicator dies. False if it is not
    // ready for calls: then nothing was done and the caller keeps the batch. If one call fails, all
    // are undone and none is made again: NCCL does not define what a mixture of registered and
    // unregistered buffers does.
    bool register_batch(std::vector<Segment>& batch) noexcept; // brings it into another order
    // Registers the segment at its alias, for a call that comes next; true if it is registered
    // then. `shows`: that call will mark the registration, if the library uses it.
    bool register_alias(const Segment& segment, std::uintptr_t alias, RegisteredFor what,
                        bool shows) noexcept;
    // After that call: whether the library used what is new. Costs one load if nothing is.
    void look_at_new_aliases() noexcept {
        if (!unlooked_.empty()) {
            look_at_aliases();
        }
    }
    // False if it holds the segment and is not ready for calls: then nothing was done. If the
    // library fails, the segment is held until the end, or, unless it `keeps` it, forgotten.
    bool deregister(const Segment& segment, bool keeps) noexcept;
    // Returns how many were undone. Waits for a communicator that is not ready; what it holds when
    // that took too long is reported, and stays. So does what the library fails to undo.
    std::size_t deregister_all() noexcept;
    bool holds(const Segment& segment) const noexcept {
        return handles_[0].contains(segment) || handles_[1].contains(segment);
    }
    // Whether the library failed to undo it: it lets go at its end, or at the next try.
    bool is_stuck(const Segment& segment) const noexcept {
        return handles_[0].is_stuck(segment) || handles_[1].is_stuck(segment);
    }
    bool holds_any() const noexcept { return handles_[0].size() + handles_[1].size() != 0; }
    // Waits until the device has done what it was given: NCCL's collectives use a registration
    // until then. Without the gate too: it makes no call into the communicator. Safe during a
    // capture.
    void wait_for_device() noexcept;

    // After death: the library frees its side itself, so nothing counts as held any more. Returns
    // how much was. The handles stay here, because a thread inside the gate may be looking at them.
    std::size_t give_up_records() noexcept;
    // After death, when the call that ends the communicator has returned: only then the library has
    // nothing of it any more. Any thread.
    void library_is_gone() noexcept {
        gone_.store(true, std::memory_order_release);
        companion_->gone();
    }
    bool gone() const noexcept { return gone_.load(std::memory_order_acquire); }

  private:
    friend class Gate;

    // With the gate's mutex: whether somebody who passes the gate has something to do here.
    bool has_work() const noexcept {
        return !dead() &&
               (!withdrawn_.empty() || (!rests() && (!pending_.empty() || !was_ready())));
    }
    bool wait_ready() noexcept;
    void register_ready(std::vector<Segment>& batch) noexcept;
    Handles& handles(RegisteredFor what) noexcept {
        return handles_[static_cast<std::size_t>(what)];
    }
    void count_held() noexcept {
        held_.store(handles_[0].size() + handles_[1].size(), std::memory_order_relaxed);
    }
    bool register_new_alias(const Segment& segment, std::uintptr_t alias,
                            RegisteredFor what) noexcept;
    bool put_outcome(const Segment& segment, RegisteredFor what, const Outcome& outcome,
                     const events::Head& when) noexcept;
    void look_at_aliases() noexcept;
    void report_stuck(const Segment& segment) noexcept;
    bool deregister_one(const Segment& segment, RegisteredFor what, bool keeps) noexcept;
    void log_registered(const Segment& segment, RegisteredFor what, const Outcome& outcome,
                        bool observed, const events::Head& when) noexcept;
    void log_deregistered(const Segment& segment, RegisteredFor what, int result, bool observed,
                          const events::Head& when) noexcept;
    void fail(const Segment& segment, int result) noexcept;

    const Identity identity_;
    const std::unique_ptr<RegistrationCalls> calls_;
    const std::shared_ptr<Gate> gate_;
    events::Ring& ring_;
    const std::shared_ptr<events::CallSlot> calls_counted_;

    std::vector<Segment> pending_; // gate's mutex
    struct Withdrawn : Segment {
        bool keeps; // what cannot be deregistered: its memory stays
    };
    std::vector<Withdrawn> withdrawn_; // gate's mutex: freed ones that are to be deregistered
    bool gave_up_ = false;             // gate's mutex: a free left its segment in `withdrawn_`
    bool retired_ = false;          // gate's mutex: it died by a retire(), and no kill() was first
    bool suspended_ = false;        // gate's mutex
    bool left_over_ = false;        // gate's mutex: a suspend() could not undo all
    std::atomic<bool> dead_{false}; // written under the gate's mutex, read anywhere
    std::atomic<Agreed> registers_at_calls_{Agreed::kNotAsked};

    std::atomic<bool> gone_{false};                    // library_is_gone() was called
    std::atomic<const std::string*> refusal_{nullptr}; // leaked: somebody may be reading it
    InProgress segments_in_progress_;

    Observations observations_;
    // Thread inside the gate; what they have changes only while the gate works on it, so that the
    // gate's mutex is enough to ask. By RegisteredFor; of whole batches, those for collectives.
    std::array<Handles, kRegisteredFor> handles_;
    std::vector<std::pair<Segment, RegisteredFor>>
        unlooked_; // the same: aliases that a call is about to mark
    std::atomic<std::uint32_t> comm_seq_{0};
    std::atomic<std::uint64_t> children_{0};
    std::atomic<std::size_t> held_{0};
    std::atomic<std::uint64_t> made_{0};
    std::atomic<std::uint64_t> undone_{0};
    std::atomic<std::uint64_t> in_effect_{0};
    std::atomic<std::uint64_t> in_vain_{0};
    std::atomic<bool> said_foreign_{false};
    std::atomic<bool> said_captured_{false};
    std::atomic<bool> failed_{false};
    std::atomic<bool> rests_{false}; // written under the gate's mutex, read anywhere
    std::atomic<bool> has_memory_{false};
    std::atomic<std::uint64_t> suspendable_{0};
    std::atomic<std::uint64_t> persistent_{0};
    std::atomic<bool> was_ready_{false};
    const std::unique_ptr<Companion> companion_; // the last: it may use all of the above
};

using CommunicatorPtr = std::shared_ptr<Communicator>;

// The short way of the gate. Every call into NCCL goes by it, so it is compiled into the callers.

// Inside: false, and outside again, if `communicator` is dead.
inline bool Gate::stay_in(const Communicator& communicator) noexcept {
    if (!communicator.dead()) {
        return true;
    }
    leave();
    return false;
}

inline bool Gate::enter(const Communicator& communicator) noexcept {
    return swap_way(Way::kOpen, Way::kTaken) ? stay_in(communicator) : enter_slowly(communicator);
}

inline bool Gate::enter_soon(const Communicator& communicator) noexcept {
    return swap_way(Way::kOpen, Way::kTaken) ? stay_in(communicator)
                                             : enter_soon_slowly(communicator);
}

} // namespace tracehook::registrar
