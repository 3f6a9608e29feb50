// What may not be done while streams are captured.
#include "capture.h"

#include <algorithm>
#include <utility>

namespace tracehook::rehearsal::cuda {
namespace {

constinit thread_local CaptureMode mode_of_thread = CaptureMode::kGlobal;

} // namespace

CaptureMode Captures::exchange_mode(CaptureMode mode) {
    return std::exchange(mode_of_thread, mode);
}

Status Captures::ask_stream(const std::shared_ptr<Stream>& stream) {
    if (none()) {
        return kSuccess;
    }
    {
        const std::lock_guard lock(mutex_);
        Member* const at = member(*stream);
        if (at != nullptr) {
            invalidate(*at->capture);
            return kStreamCaptureUnsupported;
        }
        if (const Status status = admit(*stream, at); status != kSuccess) {
            return status;
        }
    }
    return unsafe_call();
}

Status Captures::ask_device(int device) {
    if (none()) {
        return kSuccess;
    }
    {
        const std::lock_guard lock(mutex_);
        bool found = false;
        for (const auto& [stream, known] : members_) {
            if (stream->device() == device) {
                found = true;
                invalidate(*known.capture);
            }
        }
        if (found) {
            return kStreamCaptureUnsupported;
        }
    }
    return unsafe_call();
}

Status Captures::ask_event(const std::shared_ptr<const CapturePoint>& point) {
    if (point != nullptr) {
        const std::lock_guard lock(mutex_);
        if (point->capture->status != CaptureStatus::kActive) {
            return kInvalidValue;
        }
        invalidate(*point->capture);
        return kCapturedEvent;
    }
    return unsafe_call();
}

Status Captures::time_of(const CapturePoint& point) const {
    const std::lock_guard lock(mutex_);
    return point.capture->status == CaptureStatus::kActive ? kCapturedEvent : kInvalidValue;
}

Status Captures::unsafe_call() {
    if (!forbids_unsafe_calls()) {
        return kSuccess;
    }
    invalidate_forbidding();
    return kStreamCaptureUnsupported;
}

bool Captures::forbids_unsafe_calls() const {
    if (none()) {
        return false;
    }
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(members_,
                               [](const auto& known) { return forbids(*known.second.capture); });
}

void Captures::invalidate_forbidding() {
    if (none()) {
        return;
    }
    const std::lock_guard lock(mutex_);
    for (const auto& [stream, known] : members_) {
        if (forbids(*known.capture)) {
            invalidate(*known.capture);
        }
    }
}

std::optional<Status> Captures::refuse(const std::shared_ptr<Stream>& stream) {
    return in_capture(*stream, [](const Member& at) {
        invalidate(*at.capture);
        return kStreamCaptureUnsupported;
    });
}

bool Captures::forbids(const Capture& capture) {
    if (capture.mode == CaptureMode::kRelaxed || mode_of_thread == CaptureMode::kRelaxed) {
        return false;
    }
    return capture.thread == std::this_thread::get_id() ||
           (capture.mode == CaptureMode::kGlobal && mode_of_thread == CaptureMode::kGlobal);
}

} // namespace tracehook::rehearsal::cuda
