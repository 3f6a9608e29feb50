// The runtime's functions about events.
#include "cuda_abi.h"
#include "devices.h"
#include "event_table.h"
#include "runtime_call.h"
#include "stream_table.h"

namespace tracehook::emulator {
namespace {

Status create(void** handle, unsigned flags) {
    *handle = events().insert(std::make_shared<Event>(current_device(), flags));
    return kSuccess;
}

Status record(void* event_handle, void* stream_handle) {
    const StreamTable& table = StreamTable::instance();
    const std::shared_ptr<Event> event = events().find(event_handle);
    const std::shared_ptr<Stream> stream = table.find(stream_handle);
    if (event == nullptr || stream == nullptr || event->device() != stream->device()) {
        return kInvalidResourceHandle;
    }
    table.order(stream);
    event->record(stream);
    return kSuccess;
}

} // namespace
} // namespace tracehook::emulator

using namespace tracehook::emulator;

EMU_EXPORT int cudaEventCreate(void** event) {
    return context_call([&] { return create(event, 0); });
}

EMU_EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags) {
    return context_call([&] { return create(event, flags); });
}

EMU_EXPORT int cudaEventDestroy(void* event) {
    return context_call([&] { return events().remove(event) ? kSuccess : kInvalidResourceHandle; });
}

EMU_EXPORT int cudaEventRecord(void* event, void* stream) {
    return context_call([&] { return record(event, stream); });
}

EMU_EXPORT int cudaEventRecordWithFlags(void* event, void* stream, unsigned) {
    return context_call([&] { return record(event, stream); });
}

EMU_EXPORT int cudaEventQuery(void* handle) {
    return context_call([&] {
        const std::shared_ptr<Event> event = events().find(handle);
        if (event == nullptr) {
            return kInvalidResourceHandle;
        }
        const auto moment = event->latest();
        return moment == nullptr || moment->passed() ? kSuccess : kNotReady;
    });
}

EMU_EXPORT int cudaEventSynchronize(void* handle) {
    return context_call([&] {
        const std::shared_ptr<Event> event = events().find(handle);
        if (event == nullptr) {
            return kInvalidResourceHandle;
        }
        if (const auto moment = event->latest()) {
            moment->wait();
        }
        return kSuccess;
    });
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
        if (!from->passed() || !to->passed()) {
            return kNotReady;
        }
        *milliseconds = static_cast<float>(static_cast<double>(to->time_ns - from->time_ns) * 1e-6);
        return kSuccess;
    });
}
