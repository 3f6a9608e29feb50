// The runtime's functions that copy and set memory.
#include "copy.h"

#include "runtime_call.h"
#include "unwritten.h"

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cudaMemcpyAsync(void* to, const void* from, size_t size, int, void* stream) {
    return context_call([&] { return copy_on_stream(to, from, size, stream); });
}

EMU_EXPORT int cudaMemcpy(void* to, const void* from, size_t size, int) {
    return context_call([&] { return copy_and_wait(to, from, size); });
}

EMU_EXPORT int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size,
                                   void* stream) {
    return context_call([&] { return copy_on_stream(to, from, size, stream); });
}

EMU_EXPORT int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                 size_t width, size_t height, int, void* stream) {
    return context_call([&] {
        for (size_t row = 0; row < height; ++row) {
            const Status status =
                copy_on_stream(static_cast<char*>(to) + row * to_pitch,
                               static_cast<const char*>(from) + row * from_pitch, width, stream);
            if (status != kSuccess) {
                return status;
            }
        }
        return kSuccess;
    });
}

EMU_EXPORT int cudaMemsetAsync(void* at, int value, size_t size, void* stream) {
    return context_call(
        [&] { return run_on_stream(stream, [at, value, size] { set_bytes(at, value, size); }); });
}

EMU_EXPORT int cudaMemset(void* at, int value, size_t size) {
    return context_call(
        [&] { return run_on_stream(nullptr, [at, value, size] { set_bytes(at, value, size); }); });
}
