#include "torch/pool.h"

namespace tracehook {

std::int32_t Pool::is_current(void* pool) noexcept {
    const core::ScopeFrame* const scope = core::ScopeStack::current();
    return scope != nullptr && scope->source == pool;
}

void Pool::enter(std::uint32_t owner) {
    const std::lock_guard guard(mutex_);
    if (users_ == 0) {
        hook_library_.begin_pool(device_, id_.data(), &Pool::is_current, this);
    }
    ++users_;
    core::ScopeStack::enter({number_, owner, device_, this, {}});
}

std::vector<std::uint64_t> Pool::leave() {
    std::vector<std::uint64_t> touched = core::ScopeStack::leave();
    const std::lock_guard guard(mutex_);
    if (--users_ == 0) {
        hook_library_.end_pool(device_, id_.data());
    }
    return touched;
}

bool Pool::replace(TorchId id) {
    const std::lock_guard guard(mutex_);
    if (users_ != 0) {
        return false;
    }
    id_ = id;
    return true;
}

} // namespace tracehook
