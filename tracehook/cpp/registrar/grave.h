// The grave: segments that the allocator freed while a communicator that holds them was busy, or
// that the library failed to deregister.
//
// A free must not wait for another rank: the thread inside the gate may wait for one, and ranks may
// be threads of one process. So where the memory can be kept (SegmentMemory::can_keep), a free that
// waited a moment leaves its deregistration in the communicator's queue and buries the segment
// here. The allocator goes on as if the memory were gone. It goes when the last communicator has
// let go of it: the driver gives nobody its address before.
//
// The device was waited for before a segment is buried, so nothing uses it any more. Where the
// memory cannot be kept (a segment that is older than our slot of cudaFree, or of a pool with
// functions of its own; a slot where somebody else stands), the free waits, as long as it takes.
//
// Any thread, in the allocator's callback too, but with none of our locks. Never waits. The mutex
// comes before the gate's, and is never held during a call into a communicator or the driver.
#pragma once

#include "registrar/segment.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tracehook::registrar {

class Communicator;

class Grave {
  public:
    // `end`: what is to be done with a segment that nobody holds any more; called without a lock.
    using End = std::function<void(const Segment& segment)>;
    explicit Grave(End end) : end_(std::move(end)) {}

    void bury(const Segment& segment, std::vector<std::shared_ptr<Communicator>> holders) noexcept;
    // Passes the gates of those who hold something, and ends what nobody holds. One load if empty.
    void work_off() noexcept {
        if (count_.load(std::memory_order_acquire) != 0) {
            work_off_all();
        }
    }
    // Also what was taken out, and has not ended yet on the thread that took it.
    bool has(int device) const noexcept;

  private:
    struct Buried {
        Segment segment;
        std::vector<std::shared_ptr<Communicator>> holders;
    };
    void work_off_all() noexcept;
    std::vector<Segment> take_free() noexcept;

    const End end_;
    mutable std::mutex mutex_; // buried_, ending_
    std::vector<Buried> buried_;
    std::vector<Segment> ending_;
    std::atomic<std::size_t> count_{0};
};

} // namespace tracehook::registrar
