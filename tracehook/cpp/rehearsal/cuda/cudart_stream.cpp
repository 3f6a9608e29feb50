// The runtime's functions about streams.
#include "copy.h"
#include "cuda_abi.h"
#include "devices.h"
#include "event.h"
#include "runtime_call.h"
#include "stream_table.h"

#include <algorithm>

namespace tracehook::rehearsal::cuda {
namespace {

void create(void** handle, unsigned flags, int priority) {
    *handle = StreamTable::instance().create(
        current_device(), flags, std::clamp(priority, kGreatestPriority, kLeastPriority));
}

void wait_for(const Event& event, const std::shared_ptr<Stream>& stream) {
    const auto moment = event.latest();
    if (moment != nullptr && moment->captured == nullptr) {
        StreamTable::make_wait(*stream, moment->stream, moment->sequence);
    }
}

Status wait(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event,
            unsigned flags) {
    Captures& captures = Captures::instance();
    if ((flags & kEventExternal) != 0) {
        const auto launch = [event](const std::shared_ptr<Stream>& on) { wait_for(*event, on); };
        if (const auto answer = captures.record(stream, launch)) {
            return *answer;
        }
    }
    if (const auto moment = event->latest()) {
        if (const auto answer = captures.join(stream, moment->captured)) {
            return *answer;
        }
        StreamTable::make_wait(*stream, moment->stream, moment->sequence);
    }
    return kSuccess;
}

} // namespace

EMU_EXPORT int cudaStreamCreate(void** stream) {
    return context_call([&] { create(stream, 0, kLeastPriority); });
}

EMU_EXPORT int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
    return context_call([&] { create(stream, flags, kLeastPriority); });
}

EMU_EXPORT int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
    return context_call([&] { create(stream, flags, priority); });
}

EMU_EXPORT int cudaStreamDestroy(void* stream) {
    return context_call([&] {
        return StreamTable::instance().destroy(stream) ? kSuccess : kInvalidResourceHandle;
    });
}

EMU_EXPORT int cudaStreamGetPriority(void* handle, int* priority) {
    return on_stream(
        handle, [&](const std::shared_ptr<Stream>& stream) { *priority = stream->priority(); });
}

EMU_EXPORT int cudaStreamGetFlags(void* handle, unsigned* flags) {
    return on_stream(handle,
                     [&](const std::shared_ptr<Stream>& stream) { *flags = stream->flags(); });
}

EMU_EXPORT int cudaStreamSynchronize(void* handle) {
    return on_stream(handle, [](const std::shared_ptr<Stream>& stream) {
        const Status status = Captures::instance().ask_stream(stream);
        if (status == kSuccess) {
            StreamTable::instance().synchronize(stream);
        }
        return status;
    });
}

EMU_EXPORT int cudaStreamQuery(void* handle) {
    return on_stream(handle, [](const std::shared_ptr<Stream>& stream) {
        const Status status = Captures::instance().ask_stream(stream);
        if (status != kSuccess) {
            return status;
        }
        return StreamTable::instance().idle(stream) ? kSuccess : kNotReady;
    });
}

EMU_EXPORT int cudaStreamWaitEvent(void* handle, void* event_handle, unsigned flags) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        const std::shared_ptr<Event> event = events().find(event_handle);
        return event == nullptr ? kInvalidResourceHandle : wait(stream, event, flags);
    });
}

// A host function runs on the stream's own thread even if nothing is pending: it may need a lock
// that the caller holds.
EMU_EXPORT int cudaLaunchHostFunc(void* handle, void (*function)(void*), void* argument) {
    return context_call([&] {
        return launch_on_stream(handle, [function, argument](const std::shared_ptr<Stream>& on) {
            on->enqueue([function, argument] { function(argument); });
        });
    });
}

EMU_EXPORT int cudaStreamAddCallback(void* handle, void (*callback)(void*, int, void*),
                                     void* argument, unsigned) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        if (const auto answer = Captures::instance().refuse(stream)) {
            return *answer;
        }
        StreamTable::instance().order(stream);
        stream->enqueue([=] { callback(handle, kSuccess, argument); });
        return kSuccess;
    });
}

} // namespace tracehook::rehearsal::cuda
