#include "torch/pool.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <sys/syscall.h>
#include <unistd.h>

namespace tracehook::torch {

namespace {

pid_t this_thread() noexcept {
    static thread_local const pid_t number = static_cast<pid_t>(syscall(SYS_gettid));
    return number;
}

struct Forgotten {
    Pool::TorchId id;
    std::uint32_t number; // of the Pool that had it
    int device;
};

// Here and not in Python, where a signal's handler may raise between any two lines: a pool that is
// in neither list keeps its memory for ever.
class ForgottenPools {
  public:
    void add(const Forgotten& pool) {
        const std::lock_guard guard(mutex_);
        pools_.push_back(pool);
    }

    std::optional<Forgotten> take(int device) {
        const std::lock_guard guard(mutex_);
        const auto found = std::ranges::find(pools_, device, &Forgotten::device);
        if (found == pools_.end()) {
            return std::nullopt;
        }
        const Forgotten pool = *found;
        pools_.erase(found);
        return pool;
    }

  private:
    std::mutex mutex_; // a leaf
    std::vector<Forgotten> pools_;
};

// Both live on: threads may come after the exit has begun.
ForgottenPools& replaced() {
    static auto* const one = new ForgottenPools;
    return *one;
}

ForgottenPools& dropped() { // of these torch has some memory still
    static auto* const one = new ForgottenPools;
    return *one;
}

// One thread at a time: a pool that another thread is just dropping is in neither list.
std::mutex& dropping() {
    static auto* const one = new std::mutex;
    return *one;
}

void drop(const HookLibrary& hook_library, int device) {
    while (const std::optional<Forgotten> pool = replaced().take(device)) {
        hook_library.drop_pool(device, pool->id.data());
        dropped().add(*pool);
    }
}

} // namespace

std::int32_t Pool::is_current(void* torch_pool) noexcept {
    const windows::ScopeFrame* const scope = windows::ScopeStack::current();
    return scope != nullptr && scope->source == torch_pool;
}

bool Pool::is_innermost() const noexcept {
    const windows::ScopeFrame* const scope = windows::ScopeStack::current();
    return scope != nullptr && scope->source != nullptr &&
           static_cast<const TorchPool*>(scope->source)->of == this;
}

Pool::TorchPool& Pool::take(std::uint32_t owner) {
    const pid_t me = this_thread();
    const Clock::time_point now = Clock::now();
    {
        const std::lock_guard guard(mutex_);
        auto found = std::ranges::find_if(torch_pools_, [&](const TorchPool& pool) {
            return pool.used.depth > 0 && pool.used.thread == me;
        });
        if (found == torch_pools_.end()) {
            found = std::ranges::find(torch_pools_, 0,
                                      [](const TorchPool& pool) { return pool.used.depth; });
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
    return torch_pools_.emplace_back(id, this, Open{owner, me, 1, now});
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
    windows::ScopeStack::enter(
        {number_, owner, device_, &pool, {}, &pool.number, pool.number.load()});
}

std::vector<std::uint64_t> Pool::leave() {
    auto& pool =
        *static_cast<TorchPool*>(const_cast<void*>(windows::ScopeStack::current()->source));
    std::vector<std::uint64_t> touched = windows::ScopeStack::leave();
    end(pool);
    return touched;
}

void Pool::end(TorchPool& pool) {
    try {
        if (pool.used.depth == 1) {
            hook_library_.end_pool(device_, pool.id.data());
        }
    } catch (...) {
        step_back(pool);
        throw;
    }
    step_back(pool); // after torch's end: from here on replace_idle() may take it
}

bool Pool::take_out(std::uint32_t owner) {
    TorchPool* pool = nullptr;
    const bool found = windows::ScopeStack::take_out([&](const windows::ScopeFrame& scope) {
        if (scope.source == nullptr || scope.owner != owner) {
            return false;
        }
        pool = static_cast<TorchPool*>(const_cast<void*>(scope.source));
        return pool->of == this;
    });
    if (!found) {
        return false;
    }
    {
        const std::lock_guard guard(mutex_);
        pool->used.owner = windows::ScopeStack::owner_of(pool);
    }
    end(*pool);
    return true;
}

bool Pool::abandon(std::uint32_t owner) {
    TorchPool* pool = nullptr;
    {
        const std::lock_guard guard(mutex_);
        const auto may_be = [&](const TorchPool& each) {
            return each.used.depth == 1 && each.used.owner == owner;
        };
        if (std::ranges::count_if(torch_pools_, may_be) != 1) {
            return false;
        }
        pool = &*std::ranges::find_if(torch_pools_, may_be);
        pool->used.thread = 0; // which would find it here until end() has ended it
        pool->number.fetch_add(1, std::memory_order_release);
    }
    windows::ScopeStack::count_abandoned(device_);
    end(*pool);
    return true;
}

void Pool::replace_idle() {
    const std::lock_guard guard(mutex_);
    for (auto pool = torch_pools_.begin(); pool != torch_pools_.end();) {
        const auto next = std::next(pool);
        if (pool->used.depth == 0) {
            replaced().add({pool->id, number_, device_});
            if (pool->number != 0) {
                abandoned_.splice(abandoned_.end(), torch_pools_, pool);
            } else {
                torch_pools_.erase(pool);
            }
        }
        pool = next;
    }
}

void Pool::drop_replaced(const HookLibrary& hook_library, int device) {
    const std::lock_guard guard(dropping());
    drop(hook_library, device);
}

void Pool::empty_replaced(const HookLibrary& hook_library, const windows::Bank& bank, int device) {
    const std::lock_guard guard(dropping());
    drop(hook_library, device);
    std::vector<Forgotten> emptied;
    while (const std::optional<Forgotten> pool = dropped().take(device)) {
        hook_library.empty_pool(pool->id.data());
        emptied.push_back(*pool);
    }
    const std::vector<windows::PoolSegment> left = bank.segments();
    for (const Forgotten& pool : emptied) {
        // Tensors that live on may be in it: a later call looks again.
        if (std::ranges::find(left, pool.number, &windows::PoolSegment::pool) != left.end()) {
            dropped().add(pool);
        }
    }
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

} // namespace tracehook::torch
