// What every exported runtime function does besides its work: it is counted, refused in a forked
// child or without a device, fails if a fault says so, keeps exceptions inside, and leaves its
// failure where cudaGetLastError finds it.
//
// May be called from any thread. The counters are what tests read to prove that no runtime call was
// made.
#pragma once

#include "capture.h"
#include "cuda_abi.h"
#include "devices.h"
#include "faults.h"
#include "stream_table.h"

#include <memory>
#include <new>

namespace tracehook::rehearsal::cuda {

// `call`: its name.
void count_call(const char* call) noexcept;

// Whether emu_device_assert was called.
bool has_asserted() noexcept;

// Keeps a failure as the calling thread's last error, and returns it.
Status remember(Status status) noexcept;

// The last error; `take_last_error` also forgets it.
Status last_error() noexcept;
Status take_last_error() noexcept;

// A call that only asks: it needs no context on the current device. A body that returns nothing
// succeeds, here and below.
template <typename Body>
Status query_call(Body&& body, const char* call = __builtin_FUNCTION()) noexcept {
    count_call(call);
    Status status = enter_runtime();
    if (status == kSuccess) {
        try {
            status = suffer(call);
            status = status == kSuccess ? outcome(body) : status;
        } catch (const std::bad_alloc&) {
            status = kMemoryAllocation;
        } catch (...) {
            status = kUnknown;
        }
    }
    return remember(status);
}

// A call that works on the current device, and so makes its context.
template <typename Body>
Status context_call(Body&& body, const char* call = __builtin_FUNCTION()) noexcept {
    return query_call(
        [&] {
            activate_device(current_device());
            return has_asserted() ? kAssert : outcome(body);
        },
        call);
}

// A context_call that could disturb a capture, and is refused where one forbids that.
template <typename Body>
Status unsafe_call(Body&& body, const char* call = __builtin_FUNCTION()) noexcept {
    return context_call(
        [&] {
            const Status status = Captures::instance().unsafe_call();
            return status == kSuccess ? outcome(body) : status;
        },
        call);
}

// A query_call about a device, which must exist.
template <typename Body>
Status about_device(int device, Body&& body, const char* call = __builtin_FUNCTION()) noexcept {
    return query_call([&] { return in_range(device) ? outcome(body) : kInvalidDevice; }, call);
}

// A context_call about a stream: `body` gets the one of the handle.
template <typename Body>
Status on_stream(void* handle, Body&& body, const char* call = __builtin_FUNCTION()) {
    return context_call(
        [&] {
            const std::shared_ptr<Stream> stream = StreamTable::instance().find(handle);
            return stream == nullptr ? kInvalidResourceHandle : outcome(body, stream);
        },
        call);
}

} // namespace tracehook::rehearsal::cuda
