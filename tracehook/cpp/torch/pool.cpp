#include "torch/pool.h"

#include <algorithm>
#include <sys/syscall.h>
#include <unistd.h>

namespace tracehook {

namespace {

pid_t this_thread() noexcept {
    static thread_local const pid_t number = static_cast<pid_t>(syscall(SYS_gettid));
    return number;
}

} // namespace

std::int32_t Pool::is_current(void* torch_pool) noexcept {
    const core::ScopeFrame* const scope = core::ScopeStack::current();
    return scope != nullptr && scope->source == torch_pool;
}

bool Pool::is_innermost() const noexcept {
    const core::ScopeFrame* const scope = core::ScopeStack::current();
    return scope != nullptr && scope->source != nullptr &&
           static_cast<const TorchPool*>(scope->source)->of == this;
}

Pool::TorchPool& Pool::take(std::uint32_t owner) {
    const pid_t me = this_thread();
    const Clock::time_point now = Clock::now();
    {
        const std::lock_guard guard(mutex_);
        auto found = std::ranges::find_if(
            torch_pools_, [&](const TorchPool& pool) { return pool.used.thread == me; });
        if (found == torch_pools_.end()) {
            found = std::ranges::find_if(
                torch_pools_, [](const TorchPool& pool) { return pool.used.depth == 0; });
        }
        if (found != torch_pools_.end()) {
            if (found->used.depth++ == 0) {
                found->used = {owner, me, 1, now};
            }
            return *found;
        }
    }
    const TorchId id = make_();
    const std::lock_guard guard(mutex_);
    return torch_pools_.emplace_back(TorchPool{id, this, Open{owner, me, 1, now}});
}

void Pool::step_back(TorchPool& pool) noexcept {
    const std::lock_guard guard(mutex_);
    --pool.used.depth;
}

void Pool::enter(std::uint32_t owner) {
    TorchPool& pool = take(owner);
    try {
        // Only this thread changes the depth of what it uses.
        if (pool.used.depth > 1) {
            // Begun anew, so that it is the newest again.
            hook_library_.end_pool(device_, pool.id.data());
        }
        hook_library_.begin_pool(device_, pool.id.data(), &Pool::is_current, &pool);
    } catch (...) {
        step_back(pool);
        throw;
    }
    core::ScopeStack::enter({number_, owner, device_, &pool, {}});
}

std::vector<std::uint64_t> Pool::leave() {
    auto& pool = *static_cast<TorchPool*>(const_cast<void*>(core::ScopeStack::current()->source));
    std::vector<std::uint64_t> touched = core::ScopeStack::leave();
    try {
        if (pool.used.depth == 1) {
            hook_library_.end_pool(device_, pool.id.data());
        }
    } catch (...) {
        step_back(pool);
        throw;
    }
    step_back(pool); // after torch's end: from here on replace_idle() may take it
    return touched;
}

std::vector<Pool::TorchId> Pool::replace_idle() {
    const std::lock_guard guard(mutex_);
    std::vector<TorchId> idle;
    std::erase_if(torch_pools_, [&](const TorchPool& pool) {
        if (pool.used.depth == 0) {
            idle.push_back(pool.id);
        }
        return pool.used.depth == 0;
    });
    return idle;
}

std::vector<Pool::Open> Pool::open() const {
    const std::lock_guard guard(mutex_);
    std::vector<Open> found;
    for (const TorchPool& pool : torch_pools_) {
        if (pool.used.depth > 0) {
            found.push_back(pool.used);
        }
    }
    return found;
}

} // namespace tracehook
