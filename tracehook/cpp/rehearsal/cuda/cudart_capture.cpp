// The runtime's functions about stream capture.
#include "capture.h"
#include "cuda_abi.h"
#include "runtime_call.h"

namespace tracehook::rehearsal::cuda {
namespace {

bool is_mode(int mode) {
    return mode >= static_cast<int>(CaptureMode::kGlobal) &&
           mode <= static_cast<int>(CaptureMode::kRelaxed);
}

} // namespace

EMU_EXPORT int cudaStreamBeginCapture(void* handle, int mode) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        return is_mode(mode) ? Captures::instance().begin(stream, static_cast<CaptureMode>(mode))
                             : kInvalidValue;
    });
}

EMU_EXPORT int cudaStreamEndCapture(void* handle, void** graph) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        std::shared_ptr<Graph> captured;
        const Status status = Captures::instance().end(stream, captured);
        *graph = captured.get();
        return status;
    });
}

EMU_EXPORT int cudaStreamIsCapturing(void* handle, int* status) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        CaptureInfo info;
        const Status answer = Captures::instance().info(stream, info);
        if (answer == kSuccess) {
            *status = static_cast<int>(info.status);
        }
        return answer;
    });
}

// All but the status is left as it was unless the stream is captured.
EMU_EXPORT int cudaStreamGetCaptureInfo(void* handle, int* status, unsigned long long* id,
                                        void** graph, const void** dependencies, const void** edges,
                                        size_t* count) {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        CaptureInfo info;
        const Status answer = Captures::instance().info(stream, info);
        if (answer != kSuccess) {
            return answer;
        }
        *status = static_cast<int>(info.status);
        if (info.status == CaptureStatus::kActive) {
            give(id, info.id);
            give(graph, info.graph);
            give(dependencies, info.dependencies);
            give(edges, info.edges);
            give(count, info.count);
        }
        return kSuccess;
    });
}

EMU_EXPORT int cudaThreadExchangeStreamCaptureMode(int* mode) {
    return context_call([&] {
        if (!is_mode(*mode)) {
            return kInvalidValue;
        }
        *mode = static_cast<int>(Captures::exchange_mode(static_cast<CaptureMode>(*mode)));
        return kSuccess;
    });
}

} // namespace tracehook::rehearsal::cuda
