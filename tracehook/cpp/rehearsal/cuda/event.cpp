#include "event.h"

#include <chrono>
#include <utility>

namespace tracehook::rehearsal::cuda {
namespace {

int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

} // namespace

void Event::record(const std::shared_ptr<Stream>& stream) {
    auto moment = std::make_shared<Moment>();
    moment->stream = stream;
    // Without a time to take, the end of the work before is the whole truth.
    moment->sequence =
        is_timed() ? stream->submit([moment] { moment->time_ns.store(now_ns()); }) : stream->tail();
    const std::lock_guard lock(mutex_);
    latest_ = std::move(moment);
}

void Event::mark(std::shared_ptr<const CapturePoint> point) {
    auto moment = std::make_shared<Moment>();
    moment->captured = std::move(point);
    const std::lock_guard lock(mutex_);
    latest_ = std::move(moment);
}

std::shared_ptr<const Moment> Event::latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
}

} // namespace tracehook::rehearsal::cuda
