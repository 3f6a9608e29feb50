// Work of the runtime itself on streams: copies with the promises that CUDA makes about ordinary
// host memory.
//
// Any thread, except in a forked child; from inside a runtime call. The directions that callers
// name are not needed: every address tells what it is.
#pragma once

#include "capture.h"
#include "cuda_abi.h"
#include "stream_table.h"

#include <cstddef>
#include <utility>

namespace tracehook::rehearsal::cuda {

// Calls `launch` with the stream of a handle, in the order that CUDA defines; or leaves it to the
// graph that is being captured there.
template <typename Launch> Status launch_on_stream(void* handle, const Launch& launch) {
    const StreamTable& table = StreamTable::instance();
    const std::shared_ptr<Stream> stream = table.find(handle);
    if (stream == nullptr) {
        return kInvalidResourceHandle;
    }
    if (const auto answer = Captures::instance().record(stream, launch)) {
        return *answer;
    }
    table.order(stream);
    launch(stream);
    return kSuccess;
}

// Gives `work` to a stream in that way; it may run before this returns.
template <typename Work> Status run_on_stream(void* handle, Work&& work) {
    return launch_on_stream(handle, repeated(std::forward<Work>(work)));
}

// From ordinary host memory: the source may be reused at once. To ordinary host memory: waits.
// Neither holds for a captured copy, which every launch of the graph repeats from and to the same
// addresses.
Status copy_on_stream(void* to, const void* from, size_t size, void* handle);

// On the legacy stream of the current device, and waits.
Status copy_and_wait(void* to, const void* from, size_t size);

} // namespace tracehook::rehearsal::cuda
