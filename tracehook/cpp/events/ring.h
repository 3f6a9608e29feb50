// The ring: where every event goes first. Preallocated, bounded, and, when a file backs it,
// readable after SIGKILL.
//
// push() may be called from any thread, under any lock: its own mutex is the innermost of all
// (docs/design.md, lock table). It never allocates, logs, throws or takes the GIL. When the ring is
// full the *newest* event is dropped and counted: what led to a fault is worth more than what
// followed it.
#pragma once

#include "events/calls.h"
#include "events/event.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

namespace tracehook::events {

// First page of the file. Only the owner writes, except for `stacks_asked`; another process may
// read at any time. `log/ring.py` reads the same.
struct RingHeader {
    char magic[8];                     // "THRING02"; log/ring_old.py reads "THRING01"
    std::uint32_t header_bytes;        // where the first record starts
    std::uint32_t record_bytes;        // sizeof(Event)
    std::uint64_t capacity;            // records
    std::atomic<std::uint64_t> pushed; // records ever written; the next goes to pushed % capacity
    std::atomic<std::uint64_t>
        drained; // records that also stand in the log; those in [drained, pushed) do not
    std::atomic<std::uint64_t> dropped; // events that found the ring full, or made room in it
    // CLOCK_REALTIME minus CLOCK_MONOTONIC when the consumer last looked: somebody may set the
    // clock.
    std::atomic<std::uint64_t> epoch_ns;
    std::uint64_t pid;
    // When the consumer last looked, about ten times a second, or the ring began: how long the
    // process was alive.
    std::atomic<std::uint64_t> looked_ns;
    // The signal that ends this process (last_signal.h), who sent it (0: the process itself, or the
    // kernel), and when. 0: none.
    std::atomic<std::uint32_t> signal;
    std::atomic<std::int32_t> sender;
    std::atomic<std::uint64_t> signal_ns;
    // The slots of calls lie between this page and the first record. Zero in older files.
    std::uint32_t call_slots;
    std::uint32_t call_slot_bytes;
    // How often somebody asked for the stacks of this process (any process of this host may ask:
    // `log/stacks.py`), and which of these questions it answered last. Zero in older files.
    std::atomic<std::uint32_t> stacks_asked;
    std::atomic<std::uint32_t> stacks_told;
    // Why the log cannot be written any more (errno; -1: no error of the system; 0: it can be),
    // whether the process came to its end in order after that, and since when. Zero in older files.
    std::atomic<std::int32_t> log_error;
    std::atomic<std::uint32_t> log_ended;
    std::atomic<std::uint64_t> log_stopped_ns;
    // What ended the program: the texts of its event `python.exception`, as JSON. The log may not
    // have them yet. Written once; 0 bytes: none. Zero in older files.
    std::atomic<std::uint32_t> words_bytes;
    char words[2048];
};

class Ring {
  public:
    // `path` empty: memory only. Else the file is created (its blocks reserved at once, so that a
    // full disk shows here and not as SIGBUS later); failure is not fatal: the ring then lives in
    // memory and error() says why.
    Ring(const std::string& path, std::size_t capacity, std::size_t call_slots = CallTable::kSlots);
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    void push(const Event& event) noexcept;

    // Copies up to out.size() of the oldest undrained events, without the first `skip` of them;
    // they stay until mark_drained(). One consumer at a time.
    std::size_t peek(std::span<Event> out, std::size_t skip = 0) noexcept;
    void mark_drained(std::size_t count) noexcept;
    // Makes room for new events: the oldest `count` count as dropped, because no log has them.
    void let_go(std::size_t count) noexcept;

    std::uint64_t pushed() const noexcept {
        return header_->pushed.load(std::memory_order_acquire);
    }
    // Events that are not drained yet.
    std::uint64_t waiting() const noexcept {
        return pushed() - header_->drained.load(std::memory_order_acquire);
    }
    std::uint64_t dropped() const noexcept {
        return header_->dropped.load(std::memory_order_relaxed);
    }
    // When the consumer last looked, or the ring began.
    std::uint64_t looked_ns() const noexcept {
        return header_->looked_ns.load(std::memory_order_relaxed);
    }
    // Any thread. The stacks are not this room's; a forked child is asked nothing.
    void ask_stacks() noexcept {
        if (!abandoned_.load(std::memory_order_relaxed)) {
            header_->stacks_asked.fetch_add(1, std::memory_order_relaxed);
        }
    }
    std::uint32_t stacks_asked() const noexcept {
        return header_->stacks_asked.load(std::memory_order_acquire);
    }
    std::uint32_t stacks_told() const noexcept {
        return header_->stacks_told.load(std::memory_order_relaxed);
    }
    void tell_stacks(std::uint32_t asked) noexcept {
        header_->stacks_told.store(asked, std::memory_order_release);
    }
    // The consumer. What it cannot write into the log, a reader of the file gets to know.
    void stop_log(int error) noexcept;
    void end_stopped_log() noexcept;
    const std::string& error() const noexcept { return error_; }
    CallTable& calls() noexcept { return calls_; }
    // Any thread. Null if every slot is taken: the communicator's calls are not counted then. Who
    // lets it go counts into it no more. It may outlive the ring.
    std::shared_ptr<CallSlot> take_calls(const CallSlot::Owner& owner);
    // The same, of a communicator that is being made as long as somebody has this.
    std::shared_ptr<CallSlot> announce(const CallSlot::Birth& birth);

    // Async-signal-safe. Says what ends this process; does nothing in a forked child.
    void note_signal(int signal, int sender) noexcept;

    // Any thread that has the GIL. Keeps the first words that fit; does nothing in a forked child.
    void leave_words(std::string_view words) noexcept;

    // Removes the file: everything in it stands in the log.
    void remove_file() noexcept;

    // In a forked child: the memory is the parent's, and a thread that does not exist here may hold
    // the mutex. From now on nothing is written, read or removed.
    void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }

  private:
    bool map_file(std::size_t bytes);
    void map_memory(std::size_t bytes);
    void mapped(void* base, std::size_t bytes);

    std::atomic<bool> abandoned_{false};
    std::mutex mutex_; // orders pushers; nothing is locked inside it
    std::uint64_t seq_ = 0;
    std::shared_ptr<void> mapping_;
    RingHeader* header_ = nullptr;
    Event* records_ = nullptr;
    CallTable calls_{{}};
    std::string path_;
    std::string error_;
};

std::uint64_t monotonic_ns() noexcept;

} // namespace tracehook::events
