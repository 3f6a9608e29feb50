// The runtime's functions that copy and set memory, and what they give to streams.
#include "copy.h"

#include "host_memory.h"
#include "memory.h"
#include "runtime_call.h"
#include "unwritten.h"

#include <vector>

namespace tracehook::rehearsal::cuda {
namespace {

bool is_ordinary(const void* pointer) {
    return !Memory::instance().find(pointer, 1) && !HostMemory::instance().find(pointer, nullptr);
}

} // namespace

Status copy_on_stream(void* to, const void* from, size_t size, void* handle) {
    const StreamTable& table = StreamTable::instance();
    const std::shared_ptr<Stream> stream = table.find(handle);
    if (stream == nullptr) {
        return kInvalidResourceHandle;
    }
    if (size == 0) {
        return kSuccess;
    }
    const auto copy = [=] { move_bytes(to, from, size); };
    if (const auto answer = Captures::instance().record(stream, repeated(copy))) {
        return *answer;
    }
    table.order(stream);
    if (stream->try_now(copy) != 0) {
        return kSuccess;
    }
    if (is_ordinary(from)) {
        const auto* bytes = static_cast<const char*>(from);
        stream->submit([to, staged = std::vector<char>(bytes, bytes + size)] {
            move_bytes(to, staged.data(), staged.size());
        });
    } else {
        stream->submit(copy);
    }
    if (is_ordinary(to)) {
        stream->wait(stream->tail());
    }
    return kSuccess;
}

Status copy_and_wait(void* to, const void* from, size_t size) {
    const Status status = run_on_stream(nullptr, [=] { move_bytes(to, from, size); });
    if (status == kSuccess) {
        const StreamTable& table = StreamTable::instance();
        table.synchronize(table.find(nullptr));
    }
    return status;
}

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

} // namespace tracehook::rehearsal::cuda
