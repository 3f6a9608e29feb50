// The runtime's functions about streams. Capturing into graphs is not emulated, and never seen to
// be going on.
#include "copy.h"
#include "cuda_abi.h"
#include "devices.h"
#include "event_table.h"
#include "runtime_call.h"
#include "stream_table.h"

#include <algorithm>

namespace tracehook::emulator {
namespace {

Status create(void** handle, unsigned flags, int priority) {
    *handle = StreamTable::instance().create(
        current_device(), flags, std::clamp(priority, kGreatestPriority, kLeastPriority));
    return kSuccess;
}

template <typename Body> Status on_stream(void* handle, Body&& body) {
    return context_call([&] {
        const std::shared_ptr<Stream> stream = StreamTable::instance().find(handle);
        return stream == nullptr ? kInvalidResourceHandle : body(stream);
    });
}

} // namespace
} // namespace tracehook::emulator

using namespace tracehook::emulator;

EMU_EXPORT int cudaStreamCreate(void** stream) {
    return context_call([&] { return create(stream, 0, kLeastPriority); });
}

EMU_EXPORT int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
    return context_call([&] { return create(stream, flags, kLeastPriority); });
}

EMU_EXPORT int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
    return context_call([&] { return create(stream, flags, priority); });
}

EMU_EXPORT int cudaStreamDestroy(void* stream) {
    return context_call([&] {
        return StreamTable::instance().destroy(stream) ? kSuccess : kInvalidResourceHandle;
    });
}

EMU_EXPORT int cudaStreamGetPriority(void* handle, int* priority) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        *priority = stream->priority();
        return kSuccess;
    });
}

EMU_EXPORT int cudaStreamGetFlags(void* handle, unsigned* flags) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        *flags = stream->flags();
        return kSuccess;
    });
}

EMU_EXPORT int cudaStreamSynchronize(void* handle) {
    return on_stream(handle, [](const std::shared_ptr<Stream>& stream) {
        StreamTable::instance().synchronize(stream);
        return kSuccess;
    });
}

EMU_EXPORT int cudaStreamQuery(void* handle) {
    return on_stream(handle, [](const std::shared_ptr<Stream>& stream) {
        return StreamTable::instance().idle(stream) ? kSuccess : kNotReady;
    });
}

EMU_EXPORT int cudaStreamWaitEvent(void* handle, void* event_handle, unsigned) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        const std::shared_ptr<Event> event = events().find(event_handle);
        if (event == nullptr) {
            return kInvalidResourceHandle;
        }
        if (const auto moment = event->latest()) {
            StreamTable::make_wait(*stream, moment->stream, moment->sequence);
        }
        return kSuccess;
    });
}

// A host function runs on the stream's own thread even if nothing is pending: it may need a lock
// that the caller holds.
EMU_EXPORT int cudaLaunchHostFunc(void* handle, void (*function)(void*), void* argument) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        StreamTable::instance().order(stream);
        stream->enqueue([function, argument] { function(argument); });
        return kSuccess;
    });
}

EMU_EXPORT int cudaStreamAddCallback(void* handle, void (*callback)(void*, int, void*),
                                     void* argument, unsigned) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        StreamTable::instance().order(stream);
        stream->enqueue([=] { callback(handle, kSuccess, argument); });
        return kSuccess;
    });
}

EMU_EXPORT int cudaStreamIsCapturing(void* handle, int* status) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>&) {
        *status = 0;
        return kSuccess;
    });
}

EMU_EXPORT int cudaStreamGetCaptureInfo(void* handle, int* status, unsigned long long* id,
                                        void** graph, const void** dependencies, const void** edges,
                                        size_t* count) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>&) {
        *status = 0;
        if (id != nullptr) {
            *id = 0;
        }
        if (graph != nullptr) {
            *graph = nullptr;
        }
        if (dependencies != nullptr) {
            *dependencies = nullptr;
        }
        if (edges != nullptr) {
            *edges = nullptr;
        }
        if (count != nullptr) {
            *count = 0;
        }
        return kSuccess;
    });
}
