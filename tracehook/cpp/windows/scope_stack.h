// The open scopes of a thread: from which pool its allocations come, and which of the bank's
// segments they touched.
//
// Thread-local; no lock. enter() and leave() are called by the thread that runs the scope.
// current() and block_allocated() are called in the allocator's callback, on the allocating thread.
//
// A scope that ends on another thread leaves its frame here. That thread changes the number to
// which the frame's token must be equal, and from then on the frame is as good as gone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tracehook::windows {

class Bank;

struct ScopeFrame {
    std::uint32_t pool = 0;
    std::uint32_t owner = 0;
    int device = -1;
    const void* source = nullptr;                       // who directs the allocations
    std::vector<std::uint64_t> touched;                 // the bank's ids, in order of first touch
    const std::atomic<std::uint64_t>* number = nullptr; // which lives as long as the frame
    std::uint64_t token = 0;

    bool is_over() const noexcept {
        return number != nullptr && number->load(std::memory_order_acquire) != token;
    }
};

class ScopeStack {
  public:
    static void enter(ScopeFrame scope);
    // Ends the innermost scope; returns what it touched.
    static std::vector<std::uint64_t> leave() noexcept;
    // Ends the newest scope of which that holds, wherever it stands. False if there is none.
    static bool take_out(const std::function<bool(const ScopeFrame&)>& wanted);
    // A frame of another thread is over now.
    static void count_abandoned(int device) noexcept { count(device, -1); }
    // The owner of the oldest scope with that source; 0 if there is none.
    static std::uint32_t owner_of(const void* source) noexcept;

    // The innermost; null outside of all. Valid until this thread enters or leaves one.
    static const ScopeFrame* current() noexcept;

    // Whether the thread is in a scope of some pool, perhaps not the innermost.
    static bool in_scope() noexcept;

    // Whether one of these scopes is on the device.
    static bool in_scope_on(int device) noexcept;

    // Notes the segment of the bank at `address` as touched by this thread's innermost scope.
    static void block_allocated(const Bank& bank, int device, std::uintptr_t address) noexcept;

    // How many scopes are open in the process: while it is 0, nobody need look at an allocated
    // block.
    static const std::atomic<std::int32_t>& open() noexcept { return open_; }
    // Whether some thread has one open on the device.
    static bool open_on(int device) noexcept {
        return is_counted(device) &&
               open_on_[static_cast<std::size_t>(device)].load(std::memory_order_relaxed) != 0;
    }
    // How many times a thread came out of its outermost scope on the device.
    static std::uint32_t left_on(int device) noexcept {
        return is_counted(device)
                   ? left_on_[static_cast<std::size_t>(device)].load(std::memory_order_relaxed)
                   : 0;
    }

  private:
    static constexpr int kDevices = 128; // torch's own limit is 120

    static bool is_counted(int device) noexcept { return device >= 0 && device < kDevices; }
    static void count(int device, std::int32_t change) noexcept {
        open_.fetch_add(change, std::memory_order_relaxed);
        if (is_counted(device)) {
            open_on_[static_cast<std::size_t>(device)].fetch_add(change, std::memory_order_relaxed);
        }
    }
    static void count_end(int device) noexcept {
        count(device, -1);
        if (is_counted(device) && !in_scope_on(device)) {
            left_on_[static_cast<std::size_t>(device)].fetch_add(1, std::memory_order_relaxed);
        }
    }

    static inline std::atomic<std::int32_t> open_{0};
    static inline std::array<std::atomic<std::int32_t>, kDevices> open_on_{};
    static inline std::array<std::atomic<std::uint32_t>, kDevices> left_on_{};
};

} // namespace tracehook::windows
