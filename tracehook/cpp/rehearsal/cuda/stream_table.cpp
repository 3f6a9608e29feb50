#include "stream_table.h"

#include "capture.h"
#include "device.h"
#include "devices.h"

#include <cstdio>
#include <cstdlib>

namespace tracehook::rehearsal::cuda {
namespace {

bool is_special(void* handle) {
    return reinterpret_cast<uintptr_t>(handle) <= kPerThreadStreamHandle;
}

} // namespace

StreamTable::StreamTable() {
    for (int device = 0; device < kMaxDevices; ++device) {
        legacy_[device] = std::make_shared<Stream>(device, 0, kLeastPriority);
    }
}

void* StreamTable::create(int device, unsigned flags, int priority) {
    auto stream = std::make_shared<Stream>(device, flags, priority);
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(created_[device], [](const auto& known) { return known.expired(); });
        created_[device].push_back(stream);
    }
    if (stream->is_blocking()) {
        blocking_created_[device].fetch_add(1, std::memory_order_relaxed);
    }
    return handles_.insert(std::move(stream));
}

bool StreamTable::destroy(void* handle) {
    const std::shared_ptr<Stream> stream = handles_.remove(handle);
    if (stream == nullptr) {
        return false;
    }
    Captures::instance().forget(*stream);
    stream->retire();
    return true;
}

std::shared_ptr<Stream> StreamTable::find(void* handle) const {
    return is_special(handle) ? legacy_[current_device()] : handles_.find(handle);
}

void StreamTable::order(const std::shared_ptr<Stream>& stream) const {
    if (!stream->is_blocking()) {
        return;
    }
    const int device = stream->device();
    const std::shared_ptr<Stream>& legacy = legacy_[device];
    if (stream != legacy) {
        make_wait(*stream, legacy, legacy->tail());
    } else if (blocking_created_[device].load(std::memory_order_relaxed) > 0) {
        for (const auto& other : streams_of(device, true)) {
            make_wait(*stream, other, other->tail());
        }
    }
}

void StreamTable::make_wait(Stream& stream, const std::shared_ptr<Stream>& other,
                            uint64_t sequence) {
    if (&stream != other.get() && !other->finished(sequence)) {
        stream.enqueue([other, sequence] { other->wait(sequence); });
    }
}

bool StreamTable::is_legacy(const Stream& stream) const {
    return legacy_[stream.device()].get() == &stream;
}

bool StreamTable::idle(const std::shared_ptr<Stream>& stream) const {
    if (is_legacy(*stream)) {
        order(stream);
    }
    return stream->idle();
}

void StreamTable::synchronize(const std::shared_ptr<Stream>& stream) const {
    if (!idle(stream)) {
        stream->wait(stream->tail());
    }
}

void StreamTable::synchronize_device(int device) const {
    for (const auto& stream : streams_of(device, false)) {
        stream->wait(stream->tail());
    }
    legacy_[device]->wait(legacy_[device]->tail());
}

std::vector<std::shared_ptr<Stream>> StreamTable::streams_of(int device, bool blocking_only) const {
    std::vector<std::shared_ptr<Stream>> alive;
    const std::lock_guard lock(mutex_);
    for (const auto& known : created_[device]) {
        std::shared_ptr<Stream> stream = known.lock();
        if (stream != nullptr && (!blocking_only || stream->is_blocking())) {
            alive.push_back(std::move(stream));
        }
    }
    return alive;
}

EMU_EXPORT void emu_stream_enqueue(void* stream, void (*work)(void*), void* argument) {
    if (forked_child()) {
        return;
    }
    const StreamTable& table = StreamTable::instance();
    const std::shared_ptr<Stream> found = table.find(stream);
    if (found == nullptr) {
        // To drop the work would hang the job without a word.
        std::fprintf(stderr, "emulated CUDA: work given to the stream %p, which does not exist\n",
                     stream);
        std::abort();
    }
    if (Captures::instance().refuse(found)) {
        // To drop the work would hang the ranks that wait for it.
        std::fprintf(stderr,
                     "emulated CUDA: work that no graph can repeat was given to the "
                     "stream %p during a capture, which fails\n",
                     stream);
    }
    table.order(found);
    found->enqueue([work, argument] { work(argument); });
}

} // namespace tracehook::rehearsal::cuda
