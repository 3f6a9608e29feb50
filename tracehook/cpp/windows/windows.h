// The windows of one communicator, and the ways in which collectives have used them so far.
//
// A *use* is new the first time and known afterwards; who meets a new one compares it with the
// other ranks before the call goes on, then calls accept(). Every use, in order, goes into a digest
// that is equal on all ranks as long as their collectives used equal places, which is how a later
// swap between two known uses is found.
//
// Calls are numbered from 0, alike on all ranks of a correct program. NCCL looks for windows when
// it takes a call in, so windows may change only between two calls that are the same on all ranks.
// A fence holds the calls of other threads back meanwhile. A call is *in flight* from when it has
// its number, or is compared, until NCCL has taken it in.
//
// Any thread. The mutex is a leaf: nothing is called while it is held. Only look() and accept()
// wait with it, for a fence. It is not the gate's: a collective looks its buffers up before it
// enters the gate.
#pragma once

#include "windows/call_history.h"
#include "windows/known_uses.h"
#include "windows/placement.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace tracehook::windows {

struct Window {
    std::uint32_t ordinal =
        0; // position in the sequence of this communicator's windows; equal on all ranks
    std::uint64_t segment = 0; // the bank's id; 0: somebody else than tracehook made the window
    std::uintptr_t address = 0;
    std::size_t size = 0; // bytes
    void* handle = nullptr;
    bool pinned = false; // a captured graph uses it

    std::uintptr_t end() const noexcept { return address + size; }
};

// The number of the calling thread: from 1, never reused, as a thread's id is.
inline std::uint64_t this_thread() noexcept {
    static std::atomic<std::uint64_t> threads{0};
    static constinit thread_local std::uint64_t mine = 0;
    return mine != 0 ? mine : mine = ++threads;
}

// What a thread does around a wait for another thread of its process, with no lock of ours: it lets
// go what its caller may hold and that thread may need (Python's lock), and takes it again.
struct LongWait {
    void* (*let_go)() noexcept; // null: the thread holds nothing
    void (*take_again)(void*) noexcept;
};
void set_long_wait(const LongWait* wait) noexcept; // which stays for ever

class Windows {
  public:
    using Clock = std::chrono::steady_clock;

    // Whether calls have to go through look(): from the first fence, or window, on.
    bool engaged() const noexcept {
        return (calls_.load(std::memory_order_relaxed) & kEngaged) != 0;
    }
    // For the way of every collective, inside the gate, which shows that the call is in flight.
    // Counts the call unless it has to go through look(). True if it was counted.
    bool count_plain_call() noexcept {
        note_caller();
        std::uint64_t calls = calls_.load(std::memory_order_relaxed);
        while ((calls & kEngaged) == 0) {
            if (calls_.compare_exchange_weak(calls, calls + 1, std::memory_order_relaxed)) {
                return true;
            }
        }
        return false;
    }
    // Remembers who uses the communicator, as far as: nobody, one thread, or several.
    void note_caller() noexcept {
        const std::uint64_t mine = this_thread();
        std::uint64_t known = caller_.load(std::memory_order_relaxed);
        while (known != mine && known != kSeveral &&
               !caller_.compare_exchange_weak(known, known == 0 ? mine : kSeveral,
                                              std::memory_order_relaxed)) {
        }
    }
    bool several_callers() const noexcept {
        return caller_.load(std::memory_order_relaxed) == kSeveral;
    }

    // How many calls were made: the number of the next one. Those that are compared now come on
    // top: other ranks may have made them.
    std::uint64_t calls() const noexcept {
        return calls_.load(std::memory_order_relaxed) & ~kEngaged;
    }

    // That a scope of this communicator ended. Callers take turns. `first`: how many ends this one
    // stands for, if it is the first that is counted here.
    void count_end(std::int64_t first = 1) noexcept;
    // How many since the last call, when one was counted last: with the number of that call a
    // position in the program that is alike on all ranks.
    std::int64_t ends() const noexcept { return ends_.load(std::memory_order_relaxed); }

    std::uint64_t calls_begun() const;

    // A rank that found its communicator later than others cannot know the number of the next call.
    // It says this one, and all ranks go on from it.
    static constexpr std::uint64_t kRenumbered = std::uint64_t{1} << 40;

    // While a fence is up, no call gets its number or one after it: look() and accept() wait. Only
    // the calls of a thread whose open group has one in flight pass: that group could not end
    // otherwise. raise_fence() returns the number of the next call, at which the fence stands:
    // until it is lowered, or for `most`. Whoever raises a fence makes no call until he lowers it.
    enum class Fence : std::uint8_t { kRegistration, kVerification };
    std::uint64_t raise_fence(Fence fence, Clock::duration most = Clock::duration::max()) noexcept;
    void move_fence(Fence fence, std::uint64_t to) noexcept;
    // `next`: the number of the next call, if the ranks agreed on a new one; see kRenumbered.
    void lower_fence(Fence fence, std::optional<std::uint64_t> next = std::nullopt) noexcept;

    // The communicator is dead: no call waits any more.
    void end_fences() noexcept;

    // NCCL has taken in a call that look() or accept() counted. Inside the communicator's gate.
    void land() noexcept {
        landed_.store(landed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    // An open group of some thread has calls of this communicator.
    void begin_group() noexcept { groups_.fetch_add(1, std::memory_order_relaxed); }
    void end_group() noexcept { groups_.fetch_sub(1, std::memory_order_release); }
    // Calls in flight; of groups one for each begin_group().
    std::size_t flights() const;

    // No call gets this number, nor one after it: look() says `refused`.
    void stop_at(std::uint64_t call) noexcept;

    std::size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
    std::uint32_t next_ordinal() const noexcept; // what install() gives next

    void install(Window window); // gives it its ordinal, unless somebody else made it
    std::uint32_t number();      // the ordinal of a window that somebody else made
    std::optional<Window> remove(std::uint64_t segment);
    void remove_of_others(const void* handle);
    std::vector<Window> remove_all();
    std::vector<Window> list() const; // by ordinal
    bool holds_segment(std::uint64_t segment) const;
    // The window that holds all of [address, address + size).
    std::optional<Window> covering(std::uintptr_t address, std::size_t size) const;

    // A window of tracehook that has a byte of [address, address + size), if there is one.
    std::optional<Window> own_at(std::uintptr_t address, std::size_t size) const;

    struct Lookup {
        Use use;    // what has to be equal on all ranks
        Place send; // where the buffers really are
        Place receive;
        std::uint64_t call = 0; // its number, if it is made next
        bool refused = false;
        bool counted = false; // it has this number: land() is due when NCCL has taken it in
        bool known = false;
        bool milestone = false; // time to log the digest
        bool in_window = false; // a buffer starts in one
        // For whoever compares the call: of one rank's part, and as in its arguments; -1: it has
        // none.
        std::size_t bytes = 0;
        int type = -1;
        int reduction = -1;
        int root = -1;
    };
    enum class Act {
        kKnown, // counts a known use; compares a new one
        kPeek,  // does neither
    };
    // Finds the places of a call. If it is neither counted nor refused, it is in flight, and the
    // ranks have to compare it: then accept() or withdraw(). Before the first window every call is
    // counted, and only uses with a configuration are.
    // `in_group`: the calling thread has an open group with a call of this communicator.
    Lookup look(std::uint32_t operation, const Side& send, const Side& receive,
                Act act = Act::kKnown, bool in_group = false, std::uint32_t config = 0) noexcept;
    // The ranks agreed on `agreed`. Looks again, and counts the call if it uses the same. It may
    // not, if windows changed meanwhile: then the ranks have to compare what this returns.
    Lookup accept(const Lookup& agreed, const Side& send, const Side& receive,
                  bool in_group = false);
    // The ranks did not agree, so the call is not made. Its number is gone on all of them.
    void withdraw() noexcept;

    // A captured graph uses these places: their windows stay until unpin_all().
    void pin(const Lookup& look) noexcept;
    void unpin_all() noexcept;

    struct Digest {
        std::uint64_t uses = 0; // since the communicator's first window
        std::uint64_t value = 0;
    };
    Digest digest() const;

    // What the call of that number used, if it is one of the last that were counted.
    std::optional<Use> past(std::uint64_t call) const;
    // The digests after calls `first` ... `last`, as far as they are kept; the number of the first.
    struct Digests {
        std::uint64_t first = 0;
        std::vector<std::uint64_t> values;
    };
    Digests digests(std::uint64_t first, std::uint64_t last) const;

  private:
    static constexpr std::uint64_t kDown = ~std::uint64_t{0};

    struct Barrier {
        std::uint64_t at = kDown; // the call that waits at it
        Clock::time_point until;
    };

    void wait_at_fence(std::unique_lock<std::mutex>& lock, bool in_group,
                       bool is_compared) noexcept;
    void wait_for_fences(std::unique_lock<std::mutex>& lock, bool in_group,
                         bool is_compared) noexcept {
        if (fences_[0].at != kDown || fences_[1].at != kDown) {
            wait_at_fence(lock, in_group, is_compared);
        }
    }
    Lookup places(std::uint32_t operation, std::uint32_t config, const Side& send,
                  const Side& receive) const noexcept;
    Place place(const Side& side, bool* in_window) const noexcept;
    const Window* window_at(std::uintptr_t address) const noexcept;
    void count_use(const Use& use, std::uint64_t hash);
    void count_call() noexcept { // once engaged, only with the mutex
        if (const std::uint64_t calls = calls_.load(std::memory_order_relaxed);
            (calls & kEngaged) != 0) {
            calls_.store(calls + 1, std::memory_order_relaxed);
        } else {
            calls_.fetch_add(1, std::memory_order_relaxed);
        }
    }

    // In calls_: there was a fence or a window, so calls are counted with the mutex only.
    static constexpr std::uint64_t kEngaged = std::uint64_t{1} << 63;
    static constexpr std::uint64_t kSeveral = ~std::uint64_t{0};

    std::atomic<std::size_t> count_{0};
    std::atomic<std::uint64_t> calls_{0};
    std::atomic<std::uint64_t> caller_{0}; // the only thread
    std::atomic<std::int64_t> ends_{0};
    std::atomic<std::uint64_t> calls_at_end_{0}; // at the last end of a scope
    std::atomic<std::size_t> groups_{0};
    std::atomic<std::uint64_t> landed_{0}; // written by the thread inside the gate
    mutable std::mutex mutex_;             // everything below
    std::condition_variable moved_;
    std::array<Barrier, 2> fences_;
    bool fences_ended_ = false;
    std::uint64_t taken_off_ = 0;       // calls that landed, or will
    std::uint64_t compared_ = 0;        // calls, now
    std::optional<std::uint64_t> stop_; // the first call that is refused
    bool had_window_ = false;           // uses are compared and counted
    CallHistory history_;
    std::vector<Window> windows_; // by address
    KnownUses known_;
    std::uint32_t next_ordinal_ = 0;
    Digest digest_;
};

} // namespace tracehook::windows
