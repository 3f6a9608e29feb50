#include "stream.h"

#include <csignal>
#include <thread>
#include <utility>

namespace tracehook::rehearsal::cuda {
namespace {

constinit thread_local bool is_worker = false;

// The worker must not be the one that receives the signals of the job; faults it causes itself stay
// deliverable.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t blocked;
        sigfillset(&blocked);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
            sigdelset(&blocked, fault);
        }
        pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_;
};

} // namespace

uint64_t Stream::enqueue(Work work) {
    const std::lock_guard lock(mutex_);
    ensure_worker();
    queue_.push_back(std::move(work));
    work_ready_.notify_one();
    return ++submitted_;
}

uint64_t Stream::tail() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
}

void Stream::wait(uint64_t sequence) const {
    if (finished(sequence)) {
        return;
    }
    std::unique_lock lock(mutex_);
    work_done_.wait(lock, [&] { return finished(sequence); });
}

void Stream::retire() {
    const std::lock_guard lock(mutex_);
    retired_ = true;
    work_ready_.notify_one();
}

bool Stream::on_worker() {
    return is_worker;
}

uint64_t Stream::begin_inline() {
    const std::lock_guard lock(mutex_);
    return completed_.load(std::memory_order_relaxed) == submitted_ ? ++submitted_ : 0;
}

void Stream::end_inline() {
    const std::lock_guard lock(mutex_);
    complete_one();
    // Other threads may have queued work behind this one meanwhile.
    if (!queue_.empty()) {
        work_ready_.notify_one();
    }
}

void Stream::complete_one() {
    completed_.store(completed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    work_done_.notify_all();
}

void Stream::ensure_worker() {
    if (worker_running_) {
        return;
    }
    const SignalsBlocked blocked;
    std::thread(run_worker, shared_from_this()).detach();
    worker_running_ = true;
}

void Stream::run_worker(std::shared_ptr<Stream> self) {
    is_worker = true;
    std::unique_lock lock(self->mutex_);
    for (;;) {
        self->work_ready_.wait(lock, [&] {
            // What is neither completed nor queued is being done inline by another thread.
            const uint64_t pending =
                self->submitted_ - self->completed_.load(std::memory_order_relaxed);
            return self->queue_.empty() ? self->retired_ : pending == self->queue_.size();
        });
        if (self->queue_.empty()) {
            self->worker_running_ = false;
            return;
        }
        Work work = std::move(self->queue_.front());
        self->queue_.pop_front();
        lock.unlock();
        work();
        // What the work holds goes before anybody is told that it is done.
        work = nullptr;
        lock.lock();
        self->complete_one();
    }
}

} // namespace tracehook::rehearsal::cuda
