// A pool of symmetric memory as torch sees it: directs the allocations of the threads that are in a
// scope to it.
//
// torch lets a pool be begun only once at a time, by one thread. So the first thread that enters
// begins it, the last one that leaves ends it, and what belongs to whom is told by the thread's
// innermost scope. enter() and leave() are called by the thread of the scope, with none of our
// locks held; each takes the pool's mutex, then the allocator's lock.
#pragma once

#include "symmetric_memory/scope_stack.h"
#include "torch/hook_library.h"

#include <array>
#include <mutex>

namespace tracehook {

class Pool {
  public:
    using TorchId = std::array<std::uint64_t, 2>; // torch.cuda.MemPool.id

    Pool(const torch_hook::HookLibrary& hook_library, std::uint32_t number, int device, TorchId id)
        : number_(number), device_(device), hook_library_(hook_library), id_(id) {}

    // Throws std::runtime_error with torch's words; then no scope was entered.
    void enter(std::uint32_t owner);
    // Returns what the scope touched: the bank's ids, in order.
    std::vector<std::uint64_t> leave();

    // Another pool of torch takes its place. False if a thread is in a scope on it.
    bool replace(TorchId id);

    int device() const noexcept { return device_; }

  private:
    static std::int32_t is_current(void* pool) noexcept;

    const std::uint32_t number_;
    const int device_;
    const torch_hook::HookLibrary& hook_library_; // lives as long as the process
    std::mutex mutex_;                            // id_, users_; comes before the allocator's lock
    TorchId id_;
    int users_ = 0;
};

} // namespace tracehook
