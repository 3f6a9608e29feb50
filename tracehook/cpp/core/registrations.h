// The registrations of one communicator: which segments it holds, and which are still to be made.
//
// Two guards. `pending_`, `dead_`, `suspended_` belong to the gate's mutex and are touched by Gate
// only. Everything else belongs to the thread that is inside the gate, or, after death, to the
// thread that killed the communicator.
#pragma once

#include "core/communicator.h"
#include "core/handles.h"
#include "core/ring.h"
#include "core/segment.h"

#include <atomic>
#include <memory>
#include <vector>

namespace tracehook::core {

class Gate;

// Result of a deregistration that was never made: the communicator did not become ready in time.
inline constexpr int kNeverReady = -1;

class Registrations {
  public:
    Registrations(const Identity& identity, std::unique_ptr<Communicator> communicator,
                  std::shared_ptr<Gate> gate, Ring& ring);

    const Identity& identity() const noexcept { return identity_; }
    Gate& gate() const noexcept { return *gate_; }
    std::shared_ptr<Gate> shared_gate() const noexcept { return gate_; }

    // Any thread, any time: numbers for status().
    std::size_t held() const noexcept { return held_.load(std::memory_order_relaxed); }
    std::uint64_t made() const noexcept { return made_.load(std::memory_order_relaxed); }
    std::uint64_t undone() const noexcept { return undone_.load(std::memory_order_relaxed); }
    bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
    bool dead() const noexcept { return dead_.load(std::memory_order_acquire); }
    bool was_ready() const noexcept { return was_ready_.load(std::memory_order_relaxed); }

    // Counts the communicators that were made from this one (split, shrink), from 0.
    std::uint64_t next_child() noexcept {
        return children_.fetch_add(1, std::memory_order_relaxed);
    }

    // Any thread, without the gate: freeing `segment` waits for a thread that is inside.
    void log_stall(const Segment& segment) noexcept;
    void log(EventKind kind, std::uint64_t value = 0, int result = 0) noexcept;

    // --- by the thread inside the gate ---

    // Registers each segment of `batch`; stops early if the communicator dies. False if it is not
    // ready for calls: then nothing was done and the caller keeps the batch. If one call fails, all
    // are undone and none is made again: NCCL does not define what a mixture of registered and
    // unregistered buffers does.
    bool register_batch(const std::vector<Segment>& batch) noexcept;
    void deregister(const Segment& segment) noexcept;
    // Returns how many were undone.
    std::size_t deregister_all() noexcept;
    // After death: the library frees its side itself, so the records are dropped without a call.
    // Returns how many.
    std::size_t forget_all() noexcept;

  private:
    friend class Gate;

    bool wait_ready() noexcept;
    void register_ready(const std::vector<Segment>& batch) noexcept;
    void report_stuck(const Segment& segment) noexcept;
    void deregister_one(const Handles::Held& held) noexcept;
    Event event(EventKind kind) const noexcept;
    Event event(EventKind kind, const Segment& segment) const noexcept;
    void emit(Event& event) noexcept; // counts it, and pushes it
    void fail(const Segment& segment, int result) noexcept;

    const Identity identity_;
    const std::unique_ptr<Communicator> communicator_;
    const std::shared_ptr<Gate> gate_;
    Ring& ring_;

    std::vector<Segment> pending_;  // gate's mutex
    bool suspended_ = false;        // gate's mutex
    std::atomic<bool> dead_{false}; // written under the gate's mutex, read anywhere

    Handles handles_; // thread inside the gate
    std::vector<Handles::Held>
        stuck_; // likewise: freed while the communicator was not ready for too long
    std::atomic<std::uint32_t> comm_seq_{0};
    std::atomic<std::uint64_t> children_{0};
    std::atomic<std::size_t> held_{0};
    std::atomic<std::uint64_t> made_{0};
    std::atomic<std::uint64_t> undone_{0};
    std::atomic<bool> failed_{false};
    std::atomic<bool> was_ready_{false};
};

} // namespace tracehook::core
