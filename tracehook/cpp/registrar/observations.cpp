#include "registrar/observations.h"

namespace tracehook::registrar {

void Observations::put(const Segment& segment, void* handle) {
    const std::lock_guard guard(mutex_);
    held_.emplace(handle, segment);
    ++handles_of_[segment.id];
}

std::optional<Segment> Observations::take(void* handle) noexcept {
    const std::lock_guard guard(mutex_);
    const auto found = held_.find(handle);
    if (found == held_.end()) {
        return std::nullopt;
    }
    const Segment segment = found->second;
    held_.erase(found);
    if (--handles_of_[segment.id] == 0) {
        handles_of_.erase(segment.id);
    }
    return segment;
}

bool Observations::holds(const Segment& segment) const noexcept {
    const std::lock_guard guard(mutex_);
    return handles_of_.contains(segment.id);
}

std::size_t Observations::size() const noexcept {
    const std::lock_guard guard(mutex_);
    return held_.size();
}

void Observations::clear() noexcept {
    const std::lock_guard guard(mutex_);
    held_.clear();
    handles_of_.clear();
}

} // namespace tracehook::registrar
