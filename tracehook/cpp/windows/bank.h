// The bank: the memory of our own pools, segment by segment.
//
// A segment that the caching allocator gives back while a communicator has a window on it is not
// returned to the driver: it is *retired*, keeps its windows, and serves the next equal request
// (same pool, device and size; the oldest first, so that ranks with equal histories get equal
// segments). One without windows is returned at once. Either way the device's work is waited for
// first, as a free by the driver does: kernels on any stream may still use the memory.
//
// take() and give_back() run in the allocator's callback. The bank's mutex comes after the
// registrar's and before the ring's; it is never held during a call into Memory.
#pragma once

#include "events/ring.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace tracehook::windows {

// Where the bank's memory comes from, on the current device. None of them throws or calls the
// allocator.
struct Memory {
    void* (*allocate)(std::size_t size) = nullptr; // null: there is none left
    int (*release)(void* memory) = nullptr;        // 0, or the backend's error number
    void (*synchronize)() = nullptr;               // waits for the current device's work
    int (*enter_device)(int device) = nullptr;     // makes it current; returns the one before
};

struct PoolSegment {
    std::uint64_t id = 0;    // never reused
    std::uint32_t pool = 0;  // number of the pool
    std::uint32_t owner = 0; // number of the groups for which it was made
    int device = -1;
    std::uintptr_t address = 0;
    std::size_t size = 0; // bytes
    bool retired = false;
    std::uint32_t windows = 0; // communicators that have a window on it

    std::uintptr_t end() const noexcept { return address + size; }
};

class Bank {
  public:
    struct Request {
        std::uint32_t pool;
        std::uint32_t owner;
        int device;
        std::size_t size;
    };

    // Why the last take() of this process gave nothing.
    struct Refusal {
        std::uint64_t count = 0; // how many there were
        int device = -1;
        std::size_t wanted = 0; // bytes
        std::size_t held = 0;   // bytes, by the pools of that device
        std::size_t limit = 0;  // bytes; 0: there is no limit, the device itself had none left
    };

    using Span = std::array<std::atomic<std::uint64_t>, 2>;

    explicit Bank(events::Ring& ring) : ring_(ring) {}

    // Before the first take().
    void open(const Memory& memory, std::size_t limit_bytes_per_device);

    // --- the allocator's callback ---

    void* take(const Request& request) noexcept;
    // False if the address is not the bank's.
    bool give_back(std::uintptr_t address) noexcept;

    // --- windows ---

    // Before the library is asked for a window, so that the segment stays meanwhile. False: there
    // is no such segment any more. window_ended() follows when the library has no window (yet, or
    // any more).
    bool window_made(std::uint64_t id) noexcept;
    void window_ended(std::uint64_t id) noexcept;
    // window_made() for all of them, or for none.
    bool windows_made(const std::vector<std::uint64_t>& ids) noexcept;
    // Returns retired segments without a window to the driver. Not in the allocator's callback, and
    // not on the way of an abort: it waits for the device's work. Returns the bytes.
    std::size_t release_idle() noexcept;

    // --- looking ---

    std::optional<PoolSegment> find(std::uintptr_t address) const noexcept; // any address inside it
    std::optional<PoolSegment> get(std::uint64_t id) const noexcept;
    std::vector<PoolSegment> segments() const; // by id
    // Where all segments lie that there ever were, from the first number up to the second: what
    // lies elsewhere need not be looked for. Both are 0 before the first.
    const Span& span() const noexcept { return span_; }
    Refusal last_refusal() const;

  private:
    using Segments = std::map<std::uintptr_t, PoolSegment>;

    PoolSegment* by_id(std::uint64_t id) noexcept; // with the mutex
    std::size_t held(int device) const noexcept;   // likewise
    template <typename Row> void log(const PoolSegment& segment) const noexcept;
    void widen_span(const PoolSegment& segment) noexcept;
    void wait_for_device(int device) noexcept;
    void release(const PoolSegment& segment) noexcept;

    events::Ring& ring_;
    Memory memory_;                     // written once, by open()
    std::size_t limit_ = 0;             // likewise
    mutable std::mutex mutex_;          // everything below
    Segments segments_;                 // by address
    std::map<int, std::size_t> coming_; // bytes that Memory is being asked for, by device
    std::uint64_t next_id_ = 1;
    Refusal refusal_;
    Span span_{}; // written with the mutex, read without
};

} // namespace tracehook::windows
