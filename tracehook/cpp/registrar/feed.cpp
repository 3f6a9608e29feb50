#include "registrar/feed.h"

namespace tracehook::registrar {

void Feed::Listener::tell(tracehook_segment_what what, const Segment& segment) const noexcept {
    const tracehook_segment_change change{sizeof(change),
                                          what,
                                          segment.id,
                                          segment.address,
                                          segment.size,
                                          segment.device,
                                          static_cast<std::int32_t>(segment.memory)};
    call(user, &change);
}

std::uint64_t Feed::join(tracehook_segment_listener listener, void* user,
                         const std::vector<Segment>& living, const std::vector<Segment>& asleep) {
    listeners_.push_back({++last_, listener, user});
    for (const Segment& segment : living) {
        listeners_.back().tell(TRACEHOOK_SEGMENT_BORN, segment);
    }
    for (const Segment& segment : asleep) {
        listeners_.back().tell(TRACEHOOK_SEGMENT_BORN, segment);
        listeners_.back().tell(TRACEHOOK_SEGMENT_UNMAPPED, segment);
    }
    return last_;
}

void Feed::leave(std::uint64_t subscription) noexcept {
    std::erase_if(listeners_,
                  [&](const Listener& one) { return one.subscription == subscription; });
}

void Feed::tell(tracehook_segment_what what, const Segment& segment) const noexcept {
    for (const Listener& listener : listeners_) {
        listener.tell(what, segment);
    }
}

} // namespace tracehook::registrar
