// One emulated stream: work in order, done by the calling thread when nothing is pending and by the
// stream's own thread otherwise.
//
// Every piece of work has a sequence number, starting at 1; a stream has finished everything up to
// `finished`. Any thread may call any function, none of which waits, except `wait`. Work must not
// throw, and must not wait for its own stream. The thread is started when it is first needed, is
// never joined, and keeps the stream alive: a process may exit while it is blocked.
#pragma once

#include "cuda_abi.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace tracehook::rehearsal::cuda {

class Stream : public std::enable_shared_from_this<Stream> {
  public:
    using Work = std::function<void()>;

    Stream(int device, unsigned flags, int priority)
        : device_(device), flags_(flags), priority_(priority) {}

    int device() const { return device_; }
    unsigned flags() const { return flags_; }
    int priority() const { return priority_; }

    // Whether it and the legacy stream of its device wait for each other.
    bool is_blocking() const { return (flags_ & kStreamNonBlocking) == 0; }

    // Does `work` now if nothing is pending. Returns its sequence number, or 0 if it was not done.
    template <typename Callable> uint64_t try_now(Callable& work) {
        const uint64_t sequence = begin_inline();
        if (sequence != 0) {
            work();
            end_inline();
        }
        return sequence;
    }

    // Does `work` now if nothing is pending, else after what is. Returns its sequence number.
    template <typename Callable> uint64_t submit(Callable work) {
        const uint64_t sequence = try_now(work);
        return sequence != 0 ? sequence : enqueue(std::move(work));
    }

    // Leaves `work` to the stream's own thread, even if nothing is pending.
    uint64_t enqueue(Work work);

    // The number of the last piece of work given to the stream.
    uint64_t tail() const;

    bool finished(uint64_t sequence) const {
        return completed_.load(std::memory_order_acquire) >= sequence;
    }
    bool idle() const { return finished(tail()); }

    // Blocks until everything up to `sequence` is done.
    void wait(uint64_t sequence) const;

    // Lets the thread end once nothing is pending.
    void retire();

    // True on the own thread of any stream: there, waiting for streams would wait for itself.
    static bool on_worker();

  private:
    uint64_t begin_inline();
    void end_inline();
    // Both require that mutex_ is held.
    void complete_one();
    void ensure_worker();
    static void run_worker(std::shared_ptr<Stream> self);

    const int device_;
    const unsigned flags_;
    const int priority_;

    // Protects everything below; completed_ is written with it held. Nothing is locked and no work
    // runs while it is held.
    mutable std::mutex mutex_;
    mutable std::condition_variable work_done_;
    std::condition_variable work_ready_;
    std::deque<Work> queue_;
    uint64_t submitted_ = 0;
    std::atomic<uint64_t> completed_{0};
    bool worker_running_ = false;
    bool retired_ = false;
};

} // namespace tracehook::rehearsal::cuda
