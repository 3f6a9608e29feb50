// One live communicator as the registrar sees it: which segments and windows it has, and which are
// still to be made.
//
// Two guards. `pending_`, `withdrawn_`, `gave_up_`, `dead_`, `retired_`, `suspended_`, `left_over_`
// belong to the gate's mutex and are touched by Gate only. Everything else belongs to the thread
// that is inside the gate, or, after death, to the thread that killed the communicator. Only
// windows are touched by more: they have mutexes of their own.
//
// The bank counts a window from before it is made until the library has none: until it was
// deregistered, or, after death, until library_is_gone(). While a graph lives that uses windows, or
// a device communicator, none is deregistered at the communicator's end.
#pragma once

#include "core/gate.h"
#include "core/handles.h"
#include "core/in_progress.h"
#include "core/live_graphs.h"
#include "core/observations.h"
#include "core/registration_calls.h"
#include "core/segment.h"
#include "events/ring.h"
#include "symmetric_memory/bank.h"
#include "symmetric_memory/windows.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tracehook::core {

// Result of a deregistration that was never made: the communicator did not become ready in time.
// Also of a window that was not finished when the communicator died.
inline constexpr int kNeverReady = -1;

class Communicator {
  public:
    Communicator(const Identity& identity, std::unique_ptr<RegistrationCalls> calls,
                 std::shared_ptr<Gate> gate, Ring& ring, Bank& bank);

    ~Communicator();

    const Identity& identity() const noexcept { return identity_; }
    Gate& gate() const noexcept { return *gate_; }
    std::shared_ptr<Gate> shared_gate() const noexcept { return gate_; }

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

    // Counts the communicators that were made from this one (split, shrink), from 0.
    std::uint64_t next_child() noexcept {
        return children_.fetch_add(1, std::memory_order_relaxed);
    }

    // Any thread, without the gate: freeing `segment` waits for a thread that is inside.
    void log_stall(const Segment& segment) noexcept;
    // The same: it does not wait any longer, and the segment is buried.
    void log_buried(const Segment& segment) noexcept;
    void log_first_use(const Windows::Lookup& look) noexcept;
    void log_digest() noexcept;
    void log_foreign(std::uintptr_t address, std::size_t size) noexcept; // the first time

    Windows& windows() noexcept { return windows_; }
    // Where its calls are counted, by the thread inside the gate; null if there is no room.
    CallSlot* calls() const noexcept { return calls_counted_.get(); }
    void end_calls(bool aborted) noexcept {
        if (calls_counted_ != nullptr) {
            calls_counted_->end(aborted);
        }
    }
    // Whether NCCL has not yet taken in some call that has its number, other than `own` flights of
    // the thread that wants to know. Exact while a fence is up; else a plain call may begin.
    bool in_flight(std::size_t own) const noexcept;

    const std::shared_ptr<LiveGraphs>& graphs() const noexcept { return graphs_; }
    // Any thread, before a call that ends the communicator: NCCL waits in it, without end, until
    // these graphs are gone. Waits a moment itself. Logs, and tells, whether some live.
    bool has_graphs() noexcept;

    // Any thread. Device communicators (ncclDevCommCreate) that the program has. Its kernels may
    // use any window of this communicator through one, at any time, and nobody tells us which:
    // while one lives, tracehook ends no window that the ranks confirmed. A program may copy one,
    // so they are counted and not told apart. ..._begins() before the call that makes one,
    // ..._created() after it. In a group NCCL makes it later; one that then fails counts on, so
    // windows stay for longer than they have to.
    std::size_t device_communicators() const noexcept {
        return device_communicators_.load(std::memory_order_acquire);
    }
    void device_communicator_begins() noexcept;
    void device_communicator_created(int result, std::uint64_t duration_ns) noexcept;
    void device_communicator_destroyed(int result, std::uint64_t duration_ns) noexcept;

    // Any thread. From then on no call goes to NCCL, because the ranks can no longer be level;
    // `why` is what the caller hears. The first reason stands.
    // Calls before number `from` still pass.
    void refuse(const std::string& why, std::uint64_t from = 0) noexcept;
    const std::string* refusal() const noexcept { return refusal_.load(std::memory_order_acquire); }

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

    // Any thread: windows that the program makes and undoes. window_of_others() logs what came of
    // the call (`later`: NCCL has not made it yet), and keeps the window under its handle; from
    // count_window_of_others() on collectives look for it. take_...() before the call that undoes
    // it.
    void window_of_others(const Observation& seen, bool later) noexcept;
    void count_window_of_others(const void* handle) noexcept;
    Window take_window_of_others(const void* handle) noexcept;
    void log_window_of_others_ended(const Observation& seen) noexcept;

    // Any thread: the window registration that has not come back yet.
    struct Waiting {
        std::uint64_t segment = 0; // the bank's id; 0: there is none
        std::uint64_t since_ns = 0;
    };
    Waiting waiting() const noexcept;
    void log_waiting() noexcept; // as register.stalled

    // Any thread: since when calls are in NCCL that register with this communicator, for status().
    InProgress& segments_in_progress() noexcept { return segments_in_progress_; }
    InProgress& windows_in_progress() noexcept { return windows_in_progress_; }
    // Any thread. Says whose event it is, counts it, and pushes it.
    void log(Event event) noexcept;

    // --- by the thread inside the gate ---

    // Registers each segment of `batch`; stops early if the communicator dies. False if it is not
    // ready for calls: then nothing was done and the caller keeps the batch. If one call fails, all
    // are undone and none is made again: NCCL does not define what a mixture of registered and
    // unregistered buffers does.
    bool register_batch(std::vector<Segment>& batch) noexcept; // brings it into another order
    // Registers the segment at its alias, for a call that comes next; true if it is registered
    // then. `shows`: that call will mark the registration, if the library uses it.
    bool register_alias(const Segment& segment, std::uintptr_t alias, bool shows) noexcept;
    // After that call: whether the library used what is new. Costs one load if nothing is.
    void look_at_new_aliases() noexcept {
        if (!unlooked_.empty()) {
            look_at_aliases();
        }
    }
    // False if it holds the segment and is not ready for calls: then nothing was done.
    bool deregister(const Segment& segment) noexcept;
    // Returns how many were undone. Waits for a communicator that is not ready; what it holds when
    // that took too long is reported, and stays.
    std::size_t deregister_all() noexcept;
    bool holds(const Segment& segment) const noexcept { return handles_.contains(segment); }
    bool holds_any() const noexcept { return handles_.size() != 0; }
    // Waits until the device has done what it was given: NCCL's collectives use a registration
    // until then. Without the gate too: it makes no call into the communicator. Safe during a
    // capture.
    void wait_for_device() noexcept;
    // Registers a window on each, in this order, and stops at the first that fails. Each takes
    // until all ranks did the same. They can be used only after confirm_windows();
    // drop_unconfirmed_windows() undoes them instead, and may also be called after death, by any
    // thread. Nothing is done if one of the segments is gone.
    // `capturing`: a stream of this device is being captured now; only noted in the log.
    std::vector<Outcome> register_windows(const std::vector<PoolSegment>& segments,
                                          bool capturing = false) noexcept;
    void confirm_windows() noexcept;
    std::size_t drop_unconfirmed_windows() noexcept;
    // One that the program made, and that not all ranks have.
    void undo_window_of_others(const void* handle) noexcept;
    // The windows on these segments (by the bank's id).
    std::size_t deregister_windows(const std::vector<std::uint64_t>& segments) noexcept;
    std::size_t deregister_all_windows() noexcept;

    // After death: the library frees its side itself, so the records are dropped without a call.
    // Returns how many. The windows stay: see library_is_gone().
    std::size_t drop_records() noexcept;
    // After death, when the call that ends the communicator has returned: only then the library has
    // no windows any more, and their memory may go. Any thread.
    void library_is_gone() noexcept;
    bool gone() const noexcept { return gone_.load(std::memory_order_acquire); }

  private:
    friend class Gate;

    // With the gate's mutex: whether somebody who passes the gate has something to do here.
    bool has_work() const noexcept {
        return !dead() && (!pending_.empty() || !withdrawn_.empty() || !was_ready());
    }
    bool wait_ready() noexcept;
    void register_ready(std::vector<Segment>& batch) noexcept;
    bool register_new_alias(const Segment& segment, std::uintptr_t alias) noexcept;
    bool put_outcome(const Segment& segment, const Outcome& outcome, const Head& when) noexcept;
    void look_at_aliases() noexcept;
    void report_stuck(const Segment& segment) noexcept;
    void deregister_one(const Handles::Held& held) noexcept;
    void log_registered(const Segment& segment, const Outcome& outcome, bool observed,
                        const Head& when) noexcept;
    void log_deregistered(const Segment& segment, int result, bool observed,
                          const Head& when) noexcept;
    void log_window_ended(const Window& window, int result, bool observed,
                          std::uint64_t duration_ns) noexcept;
    void fail(const Segment& segment, int result) noexcept;

    const Identity identity_;
    const std::unique_ptr<RegistrationCalls> calls_;
    const std::shared_ptr<Gate> gate_;
    Ring& ring_;
    Bank& bank_;
    const std::shared_ptr<CallSlot> calls_counted_;

    std::vector<Segment> pending_;   // gate's mutex
    std::vector<Segment> withdrawn_; // gate's mutex: freed ones that are to be deregistered
    bool gave_up_ = false;           // gate's mutex: a free left its segment in `withdrawn_`
    bool retired_ = false;           // gate's mutex: it died by a retire(), and no kill() was first
    bool suspended_ = false;         // gate's mutex
    bool left_over_ = false;         // gate's mutex: a suspend() could not undo all
    std::atomic<bool> dead_{false};  // written under the gate's mutex, read anywhere
    std::atomic<Agreed> registers_at_calls_{Agreed::kNotAsked};

    Outcome finish_window(const Outcome& begun, const PoolSegment& segment) noexcept;
    std::size_t deregister_these(const std::vector<Window>& windows) noexcept;
    void keep(const Window& window) noexcept;
    std::uint64_t next_ordinal() const noexcept;
    std::vector<Window> take_unconfirmed() noexcept;
    void drop_window_records_if_gone() noexcept;
    void drop_window_records() noexcept;

    const std::shared_ptr<LiveGraphs> graphs_ = std::make_shared<LiveGraphs>();
    Windows windows_;
    mutable std::mutex unconfirmed_mutex_; // comes before Windows::mutex_
    std::vector<Window> unconfirmed_; // count, but are not in the table: made a moment ago, or left
                                      // over by a death
    std::vector<Window> others_;      // windows of others, by unconfirmed_mutex_
    std::vector<Window> stuck_;       // NCCL did not end them, so their memory stays
    std::atomic<bool> gone_{false};   // library_is_gone() was called
    std::atomic<const std::string*> refusal_{nullptr}; // leaked: somebody may be reading it
    std::atomic<std::size_t> device_communicators_{0};
    std::atomic<std::uint64_t> waiting_segment_{0};
    std::atomic<std::uint64_t> waiting_since_{0};
    InProgress segments_in_progress_;
    InProgress windows_in_progress_;

    Observations observations_;
    Handles handles_;               // thread inside the gate; what it has changes only while the
                                    // gate works on it, so that the gate's mutex is enough to ask
    std::vector<Segment> unlooked_; // the same: aliases that a call is about to mark
    std::atomic<std::uint32_t> comm_seq_{0};
    std::atomic<std::uint64_t> children_{0};
    std::atomic<std::size_t> held_{0};
    std::atomic<std::uint64_t> made_{0};
    std::atomic<std::uint64_t> undone_{0};
    std::atomic<std::uint64_t> in_effect_{0};
    std::atomic<std::uint64_t> in_vain_{0};
    std::atomic<bool> said_foreign_{false};
    std::atomic<bool> failed_{false};
    std::atomic<bool> was_ready_{false};
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

} // namespace tracehook::core
