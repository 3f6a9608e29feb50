// Since when some kind of call is in the library: what a hang looks like from outside.
//
// Any thread, under any lock: one atomic number, no allocation, no wait. Of calls that overlap the
// first one tells; the next one that begins after its end tells again.
#pragma once

#include "events/ring.h"

#include <atomic>
#include <cstdint>

namespace tracehook::registrar {

class InProgress {
  public:
    // Monotonic nanoseconds; 0: no such call is in the library.
    std::uint64_t since_ns() const noexcept { return since_ns_.load(std::memory_order_relaxed); }

    // Stands around the call.
    class Call {
      public:
        explicit Call(InProgress& owner) noexcept : owner_(owner) {
            std::uint64_t none = 0;
            tells_ = owner.since_ns_.compare_exchange_strong(none, events::monotonic_ns(),
                                                             std::memory_order_relaxed);
        }
        ~Call() {
            if (tells_) {
                owner_.since_ns_.store(0, std::memory_order_relaxed);
            }
        }
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;

      private:
        InProgress& owner_;
        bool tells_;
    };

  private:
    std::atomic<std::uint64_t> since_ns_{0};
};

} // namespace tracehook::registrar
