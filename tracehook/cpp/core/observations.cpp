#include "core/observations.h"

#include <algorithm>

namespace tracehook::core {

void Observations::put(const Segment& segment, void* handle) {
    const std::lock_guard guard(mutex_);
    held_.emplace(handle, segment);
}

std::optional<Segment> Observations::take(void* handle) noexcept {
    const std::lock_guard guard(mutex_);
    const auto found = held_.find(handle);
    if (found == held_.end()) {
        return std::nullopt;
    }
    const Segment segment = found->second;
    held_.erase(found);
    return segment;
}

bool Observations::holds(const Segment& segment) const noexcept {
    const std::lock_guard guard(mutex_);
    return std::ranges::any_of(held_,
                               [&](const auto& each) { return each.second.id == segment.id; });
}

std::size_t Observations::size() const noexcept {
    const std::lock_guard guard(mutex_);
    return held_.size();
}

void Observations::clear() noexcept {
    const std::lock_guard guard(mutex_);
    held_.clear();
}

} // namespace tracehook::core
