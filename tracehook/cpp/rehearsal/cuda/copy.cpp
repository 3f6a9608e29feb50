#include "copy.h"

#include "host_memory.h"
#include "memory.h"
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

} // namespace tracehook::rehearsal::cuda
