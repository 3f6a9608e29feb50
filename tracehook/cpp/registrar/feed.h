// Who listens to births and deaths of segments (feed_abi.h).
//
// A leaf of the registrar: every function is called with the registrar's mutex held, so that a new
// listener misses nothing and hears nothing twice.
#pragma once

#include "registrar/feed_abi.h"
#include "registrar/segment.h"

#include <cstdint>
#include <vector>

namespace tracehook::registrar {

class Feed {
  public:
    std::uint64_t join(tracehook_segment_listener listener, void* user,
                       const std::vector<Segment>& living, const std::vector<Segment>& asleep);
    void leave(std::uint64_t subscription) noexcept;
    void tell(tracehook_segment_what what, const Segment& segment) const noexcept;

  private:
    struct Listener {
        std::uint64_t subscription;
        tracehook_segment_listener call;
        void* user;
        void tell(tracehook_segment_what what, const Segment& segment) const noexcept;
    };

    std::vector<Listener> listeners_;
    std::uint64_t last_ = 0;
};

} // namespace tracehook::registrar
