// The open scopes of a thread: from which pool its allocations come, and which of the bank's
// segments they touched.
//
// Thread-local; no lock. enter() and leave() are called by the thread that runs the scope.
// pool_is_mine() and block_allocated() are called in the allocator's callback, on the allocating
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace tracehook::core {

class Bank;

struct ScopeFrame {
    std::uint32_t pool = 0;
    std::uint32_t owner = 0;
    int device = -1;
    const void* source = nullptr;       // who directs the allocations
    std::vector<std::uint64_t> touched; // the bank's ids, in order of first touch
};

class ScopeStack {
  public:
    static void enter(ScopeFrame scope);
    // Ends the innermost scope; returns what it touched.
    static std::vector<std::uint64_t> leave() noexcept;

    // The innermost; null outside of all. Valid until this thread enters or leaves one.
    static const ScopeFrame* current() noexcept;

    // Whether the thread is in a scope of some pool, perhaps not the innermost.
    static bool in_scope() noexcept;

    static void block_allocated(const Bank& bank, int device, std::uintptr_t address) noexcept;

    // How many scopes are open in the process: while it is 0, nobody need look at an allocated
    // block.
    static const std::atomic<std::int32_t>& open() noexcept { return open_; }

  private:
    static inline std::atomic<std::int32_t> open_{0};
};

} // namespace tracehook::core
