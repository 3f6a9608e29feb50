// One emulated event: a point in the work of a stream, and when that point was passed.
//
// Any thread, except in a forked child. A waiter takes the moment that was recorded last when it
// began to wait; recording the event again does not disturb it.
#pragma once

#include "cuda_abi.h"
#include "handle_table.h"
#include "leaked.h"
#include "stream.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace tracehook::rehearsal::cuda {

struct CapturePoint;

// Where in a capture an event was recorded, if `captured` is not null: nothing then passes it. Else
// where in the work of `stream`.
struct Moment {
    std::shared_ptr<const CapturePoint> captured;
    std::shared_ptr<Stream> stream;
    uint64_t sequence = 0;
    std::atomic<int64_t> time_ns{0};

    bool passed() const { return stream->finished(sequence); }
    void wait() const { stream->wait(sequence); }
};

class Event {
  public:
    Event(int device, unsigned flags) : device_(device), flags_(flags) {}

    int device() const { return device_; }
    bool is_timed() const { return (flags_ & kEventDisableTiming) == 0; }

    // Marks the point after all work that `stream` was given so far.
    void record(const std::shared_ptr<Stream>& stream);

    // Marks a point of a capture.
    void mark(std::shared_ptr<const CapturePoint> point);

    // The moment recorded last; null before the first.
    std::shared_ptr<const Moment> latest() const;

  private:
    const int device_;
    const unsigned flags_;

    // Protects latest_. Nothing is locked while it is held.
    mutable std::mutex mutex_;
    std::shared_ptr<const Moment> latest_;
};

inline HandleTable<Event>& events() {
    return leaked<HandleTable<Event>>();
}

} // namespace tracehook::rehearsal::cuda
