#include "communicator.h"

#include "calls.h"
#include "process_end.h"
#include "settings.h"
#include "waiting.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

namespace tracehook::rehearsal::nccl {

using namespace std::chrono_literals;

namespace {

constexpr auto kPatience = 20ms;
constexpr auto kLongestStop = 2s;

// In the order of State.
constexpr std::array kStateNames{"initialising", "ready",   "suspended", "shrunk, its work aborted",
                                 "finalizing",   "revoked", "ended"};
static_assert(kStateNames.size() == static_cast<std::size_t>(State::kEnded) + 1);

} // namespace

const char* state_name(State state) {
    return kStateNames.at(static_cast<std::size_t>(state));
}

Communicator::Communicator(int device, bool blocking) : device_(device), blocking_(blocking) {}

void Communicator::settle(Key key, int rank, int ranks) {
    key_ = key;
    rank_ = rank;
    ranks_ = ranks;
    sent_.assign(static_cast<std::size_t>(ranks), 0);
    received_.assign(static_cast<std::size_t>(ranks), 0);
    meeting_ = std::make_unique<Rendezvous>(key, rank, ranks, [this] { return stopped(); });
}

Result Communicator::join(const std::string& call) {
    const WaitScope waiting(*this, [&] { return call; }, [this] { return meeting_->missing(); });
    const auto [result, text] = meeting_->join(device_, settings().host);
    if (result != kSuccess) {
        if (!stopped()) {
            std::fprintf(stderr, "rehearsal: communicator of %d ranks, rank %d: %s\n", ranks_,
                         rank_, text.c_str());
        }
        fail(result, text);
        return failed(result, text);
    }
    return kSuccess;
}

void Communicator::stop() {
    stopped_ = true;
    const std::lock_guard lock(work_mutex_);
    work_changed_.notify_all();
}

bool Communicator::stopped() const {
    return stopped_ || process_ending();
}

void Communicator::fail(Result result, const std::string& text) {
    const std::lock_guard lock(work_mutex_);
    if (error_ == kSuccess) {
        error_ = result;
        error_text_ = text;
    }
}

Result Communicator::async_result() const {
    {
        const std::lock_guard lock(work_mutex_);
        if (error_ != kSuccess) {
            return error_;
        }
    }
    return in_progress() ? kInProgress : kSuccess;
}

std::string Communicator::async_text() const {
    const std::lock_guard lock(work_mutex_);
    return error_text_;
}

bool Communicator::enter(const char* call) {
    if (!guard_.try_lock()) {
        report(Rule::kL6, subject(), "%s was called while another thread was in %s", call,
               inside_.load());
        // The model itself must stay sound, so what would be a race in NCCL only waits here.
        while (!guard_.try_lock()) {
            if (stopped()) {
                return false;
            }
            std::this_thread::sleep_for(1ms);
        }
    }
    if (depth_++ == 0) {
        inside_ = call;
    }
    return true;
}

void Communicator::leave() {
    --depth_;
    guard_.unlock();
}

std::uint64_t Communicator::launch_work() {
    const std::lock_guard lock(work_mutex_);
    return ++launched_;
}

bool Communicator::begin_work(std::uint64_t number) {
    std::unique_lock lock(work_mutex_);
    while (finished_ + 1 != number && !stopped()) {
        work_changed_.wait_for(lock, kPatience);
    }
    if (stopped()) {
        return false;
    }
    ++running_;
    return true;
}

void Communicator::end_work(std::uint64_t number) {
    const std::lock_guard lock(work_mutex_);
    --running_;
    finished_ = number;
    work_changed_.notify_all();
}

void Communicator::wait_idle() {
    std::unique_lock lock(work_mutex_);
    while (finished_ != launched_ && !stopped()) {
        work_changed_.wait_for(lock, kPatience);
    }
}

bool Communicator::remove_device_communicator() {
    int live = device_communicators_;
    while (live != 0 && !device_communicators_.compare_exchange_weak(live, live - 1)) {
    }
    return live != 0;
}

void Communicator::released() {
    const std::lock_guard lock(work_mutex_);
    --captured_;
    work_changed_.notify_all();
}

void Communicator::wait_for_graphs(const char* call) {
    // Of one rank alone NCCL keeps no record: there is nothing but a copy in the graph.
    const auto deadline = std::chrono::steady_clock::now() + settings().window_timeout;
    std::unique_lock lock(work_mutex_);
    while (ranks_ > 1 && captured_ != 0 && !process_ending()) {
        if (std::chrono::steady_clock::now() >= deadline) {
            report(Rule::kC8, subject(), "%s would never return: %d operation(s) stand in graphs",
                   call, captured_.load());
            return;
        }
        work_changed_.wait_for(lock, kPatience);
    }
}

void Communicator::wait_stopped() {
    const auto deadline = std::chrono::steady_clock::now() + kLongestStop;
    std::unique_lock lock(work_mutex_);
    while (running_ != 0 && std::chrono::steady_clock::now() < deadline) {
        work_changed_.wait_for(lock, kPatience);
    }
}

} // namespace tracehook::rehearsal::nccl
