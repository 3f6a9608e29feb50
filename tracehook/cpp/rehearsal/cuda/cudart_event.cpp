// Events, and the runtime's functions about them.
#include "event.h"

#include "cuda_abi.h"
#include "devices.h"
#include "runtime_call.h"
#include "stream_table.h"

#include <chrono>
#include <utility>

namespace tracehook::rehearsal::cuda {
namespace {

int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

void create(void** handle, unsigned flags) {
    *handle = events().insert(std::make_shared<Event>(current_device(), flags));
}

Status record(void* event_handle, void* stream_handle, unsigned flags) {
    const StreamTable& table = StreamTable::instance();
    const std::shared_ptr<Event> event = events().find(event_handle);
    const std::shared_ptr<Stream> stream = table.find(stream_handle);
    if (event == nullptr || stream == nullptr || event->device() != stream->device()) {
        return kInvalidResourceHandle;
    }
    Captures& captures = Captures::instance();
    if ((flags & kEventExternal) != 0) {
        const auto launch = [event](const std::shared_ptr<Stream>& on) { event->record(on); };
        if (const auto answer = captures.record(stream, launch)) {
            return *answer;
        }
    }
    std::shared_ptr<const CapturePoint> point;
    if (const auto answer = captures.mark(stream, point)) {
        if (point != nullptr) {
            event->mark(std::move(point));
        }
        return *answer;
    }
    table.order(stream);
    event->record(stream);
    return kSuccess;
}

// Does `body` with the moment that was recorded last, if one may ask about it.
template <typename Body> Status ask(void* handle, Body&& body) {
    return context_call([&] {
        const std::shared_ptr<Event> event = events().find(handle);
        if (event == nullptr) {
            return kInvalidResourceHandle;
        }
        const auto moment = event->latest();
        const Status status =
            Captures::instance().ask_event(moment == nullptr ? nullptr : moment->captured);
        return status != kSuccess || moment == nullptr ? status : outcome(body, *moment);
    });
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

EMU_EXPORT int cudaEventCreate(void** event) {
    return context_call([&] { create(event, 0); });
}

EMU_EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags) {
    return context_call([&] { create(event, flags); });
}

EMU_EXPORT int cudaEventDestroy(void* event) {
    return context_call([&] { return events().remove(event) ? kSuccess : kInvalidResourceHandle; });
}

EMU_EXPORT int cudaEventRecord(void* event, void* stream) {
    return context_call([&] { return record(event, stream, 0); });
}

EMU_EXPORT int cudaEventRecordWithFlags(void* event, void* stream, unsigned flags) {
    return context_call([&] { return record(event, stream, flags); });
}

EMU_EXPORT int cudaEventQuery(void* event) {
    return ask(event, [](const Moment& moment) { return moment.passed() ? kSuccess : kNotReady; });
}

EMU_EXPORT int cudaEventSynchronize(void* event) {
    return ask(event, [](const Moment& moment) { moment.wait(); });
}

EMU_EXPORT int cudaEventElapsedTime(float* milliseconds, void* start_handle, void* end_handle) {
    return context_call([&] {
        const std::shared_ptr<Event> start = events().find(start_handle);
        const std::shared_ptr<Event> end = events().find(end_handle);
        if (start == nullptr || end == nullptr || !start->is_timed() || !end->is_timed()) {
            return kInvalidResourceHandle;
        }
        const auto from = start->latest();
        const auto to = end->latest();
        if (from == nullptr || to == nullptr) {
            return kInvalidResourceHandle;
        }
        for (const auto& moment : {from, to}) {
            if (moment->captured != nullptr) {
                return Captures::instance().time_of(*moment->captured);
            }
        }
        if (!from->passed() || !to->passed()) {
            return kNotReady;
        }
        *milliseconds = static_cast<float>(static_cast<double>(to->time_ns - from->time_ns) * 1e-6);
        return kSuccess;
    });
}

} // namespace tracehook::rehearsal::cuda
