// One rank of one communicator: its state, its registrations and the order of its work.
//
// Callers reach it through an Entry (entry.h), which checks the state and holds the guard; the work
// of its streams and the background jobs hold a shared pointer, so it outlives its handle. Locks:
// the guard first, then the lock of the work. Neither is held while waiting for other ranks, except
// the guard during calls in which NCCL itself blocks.
#pragma once

#include "names.h"
#include "naming.h"
#include "registration.h"
#include "rendezvous.h"
#include "rules.h"
#include "windows.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tracehook::rehearsal::nccl {

enum class State {
    kInitialising,
    kReady,
    kSuspended,
    kShrunk, // with the flag that ends its work
    kFinalizing,
    kRevoked,
    kEnded
};

const char* state_name(State state);

// An operator made by ncclRedOpCreatePreMulSum. A device scalar is read when the operation runs.
struct PreMultiply {
    bool live = false;
    DataType type = kFloat32;
    const void* device_scalar = nullptr;
    std::byte scalar[8]{};
};

class Communicator {
  public:
    Communicator(int device, bool blocking);

    int device() const { return device_; }
    bool blocking() const { return blocking_; }

    // What is known only after a split: to be called before join(), and read by others once ready.
    void settle(Key key, int rank, int ranks);
    const Key& key() const { return key_; }
    // Before join(), as settle().
    void call_it(Name name) { name_ = std::move(name); }
    const Name& name() const { return name_; }
    int rank() const { return rank_; }
    int ranks() const { return ranks_; }

    // Waits for the other ranks. The state does not change: who called decides when it is ready.
    // `call`: what the program called to make it.
    Result join(const std::string& call);
    Rendezvous& meeting() { return *meeting_; }
    const Rendezvous& meeting() const { return *meeting_; }

    State state() const { return state_; }
    void become(State state) { state_ = state; }
    // Ends all waiting and all work, here only: what abort and revoke do.
    void stop();
    bool stopped() const;

    // The first failure is kept, with its text.
    void fail(Result result, const std::string& text);
    Result async_result() const;
    std::string async_text() const;
    // While jobs run in the background the communicator is in progress.
    void begin_background() { ++background_; }
    void end_background() { --background_; }
    bool in_progress() const { return state_ == State::kInitialising || background_ != 0; }

    // Rule L6. enter() says so if another thread is inside, then waits for it; false if it never
    // left.
    bool enter(const char* call);
    void leave();

    RegistrationCache& registrations() { return registrations_; }
    WindowTable& windows() { return windows_; }

    // Work is numbered as it is launched and done in that order, on whatever streams.
    std::uint64_t launch_work();
    bool begin_work(std::uint64_t number);
    void end_work(std::uint64_t number);
    void wait_idle();
    // Waits, not for ever, until no thread is inside the work of a communicator that is idle or
    // stopped.
    void wait_stopped();

    // Graphs that hold its work count, each piece of work by itself.
    void captured() { ++captured_; }
    void released();
    bool in_graphs() const { return captured_ != 0; }
    // Rule C8. NCCL waits without end for the graphs, also in an abort; here to the deadline.
    void wait_for_graphs(const char* call);

    // Counters of what runs, equal on all ranks; between begin_work and end_work.
    std::uint64_t next_collective() { return ++collectives_; }
    std::uint64_t next_send(int peer) { return ++sent_[peer]; }
    std::uint64_t next_receive(int peer) { return ++received_[peer]; }

    // Counters of what was called, equal on all ranks; under the guard.
    std::uint64_t next_split() { return ++splits_; }
    std::uint64_t next_shrink() { return ++shrinks_; }
    std::uint64_t next_grow() { return ++grows_; }
    std::uint64_t grows() const { return grows_; }
    std::uint64_t children() const { return splits_ + shrinks_ + grows_; }
    std::uint64_t next_device_communicator() { return ++device_communicators_made_; }

    // Those that live. remove: false if there is none. A program may copy one, so nothing tells
    // them apart.
    void add_device_communicator() { ++device_communicators_; }
    bool remove_device_communicator();
    int device_communicators() const { return device_communicators_; }

    // Made and destroyed under the guard.
    // The number of an operator is another one on each rank, as NCCL makes it of an address.
    int add_operator(const PreMultiply& made) {
        operators_.push_back(made);
        return kNumOps + static_cast<int>(operators_.size() - 1) * ranks_ + rank_;
    }
    // Null if it has no operator of that number.
    PreMultiply* find_operator(int op) {
        const int place = op - kNumOps;
        const bool is_ours = place >= 0 && place % ranks_ == rank_;
        const auto index = static_cast<std::size_t>(place / ranks_);
        return is_ours && index < operators_.size() ? &operators_[index] : nullptr;
    }

    void set_handle(Comm handle) { handle_ = handle; }
    Comm handle() const { return handle_; }
    Subject subject() const { return {rank_, handle_, name_.key}; }

  private:
    const int device_;
    const bool blocking_;
    Key key_;
    Name name_;
    int rank_ = -1;
    int ranks_ = 0;
    std::atomic<Comm> handle_{nullptr};
    std::atomic<State> state_{State::kInitialising};
    std::atomic<bool> stopped_{false};
    std::atomic<int> background_{0};
    std::atomic<int> captured_{0};
    std::atomic<int> device_communicators_{0};
    std::unique_ptr<Rendezvous> meeting_;
    RegistrationCache registrations_;
    WindowTable windows_;

    std::recursive_mutex guard_;                // one thread inside at a time; comes first
    int depth_ = 0;                             // under guard_
    std::atomic<const char*> inside_{"a call"}; // what the thread inside called

    mutable std::mutex work_mutex_; // protects what follows; comes after guard_
    std::condition_variable work_changed_;
    std::uint64_t launched_ = 0;
    std::uint64_t finished_ = 0;
    int running_ = 0;
    Result error_ = kSuccess;
    std::string error_text_;

    std::uint64_t collectives_ = 0;
    std::uint64_t splits_ = 0;
    std::uint64_t shrinks_ = 0;
    std::uint64_t grows_ = 0;
    std::uint64_t device_communicators_made_ = 0;
    std::vector<std::uint64_t> sent_;
    std::vector<std::uint64_t> received_;
    std::vector<PreMultiply> operators_;
};

} // namespace tracehook::rehearsal::nccl
