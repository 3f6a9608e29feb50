// A pool of symmetric memory as torch sees it: directs the allocations of the threads that are in a
// scope to it.
//
// It consists of pools of torch, one for each thread that is in a scope at the same time. torch
// asks the pools that are begun, the newest first, whose an allocation is. So each thread begins
// one of its own when it enters: then its innermost scope wins over whatever it had begun before
// (use_mem_pool, a capture), and no other thread changes that. A thread gets the oldest pool of
// torch that is free, whichever it had before: which thread takes a turn is another one on each
// rank.
//
// enter() and leave() are called by the thread of the scope, without the GIL and with none of our
// locks held: each takes the allocator's lock, which a free that waits for NCCL may hold.
#pragma once

#include "torch/hook_library.h"
#include "windows/bank.h"
#include "windows/scope_stack.h"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <mutex>
#include <sys/types.h>
#include <vector>

namespace tracehook::torch {

class Pool {
  public:
    using TorchId = std::array<std::uint64_t, 2>; // torch.cuda.MemPool.id
    using Clock = std::chrono::steady_clock;

    // A thread that is in a scope, since it entered its outermost one on this pool.
    struct Open {
        std::uint32_t owner = 0; // number of the groups of the outermost scope
        pid_t thread = 0;        // the kernel's number
        int depth = 0;           // scopes inside of each other
        Clock::time_point since;
    };

    // `make` returns the id of a new pool of torch. It may take the GIL.
    Pool(const torch::HookLibrary& hook_library, std::uint32_t number, int device,
         std::function<TorchId()> make)
        : number_(number), device_(device), hook_library_(hook_library), make_(std::move(make)) {}

    // Throws std::runtime_error with torch's words; then no scope was entered.
    void enter(std::uint32_t owner);
    // Whether the calling thread's innermost scope is one of this pool.
    bool is_innermost() const noexcept;
    // Only if is_innermost(). Returns what the scope touched: the bank's ids, in order.
    std::vector<std::uint64_t> leave();
    // Ends the newest scope of that owner which is not the innermost of the calling thread; or that
    // of another thread, if only one can be meant: then its next allocation is an ordinary one.
    // False if there is none.
    bool take_out(std::uint32_t owner);
    bool abandon(std::uint32_t owner);

    // Forgets the pools of torch that no thread is in a scope of: the next scopes get new ones.
    void replace_idle();
    // Of those that any Pool of the device has forgotten: makes what no tensor uses a part of
    // torch's cache, which an empty_cache() and a lack of memory empty. Waits for the allocator's
    // lock alone.
    static void drop_replaced(const torch::HookLibrary& hook_library, int device);
    // And has torch give that to the driver, also what was dropped before, when tensors used it.
    // Only while HookLibrary::quiet(). Waits for the device.
    static void empty_replaced(const torch::HookLibrary& hook_library, const windows::Bank& bank,
                               int device);
    std::vector<Open> open() const;

    int device() const noexcept { return device_; }

  private:
    struct TorchPool {
        TorchId id;
        Pool* of;
        Open used;                            // by the last thread; depth 0: nobody is in a scope
        std::atomic<std::uint64_t> number{0}; // of the scopes that ended on other threads
    };

    static std::int32_t is_current(void* torch_pool) noexcept;
    TorchPool& take(std::uint32_t owner);
    void step_back(TorchPool& pool) noexcept;
    void end(TorchPool& pool);

    const std::uint32_t number_;
    const int device_;
    const torch::HookLibrary& hook_library_; // lives as long as the process
    const std::function<TorchId()> make_;
    mutable std::mutex mutex_; // a leaf: torch_pools_; never held during a call into torch
    std::list<TorchPool> torch_pools_;
    std::list<TorchPool> abandoned_; // forgotten ones to which a frame of some thread may lead
};

} // namespace tracehook::torch
