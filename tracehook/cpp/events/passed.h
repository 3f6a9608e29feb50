// Memory that came and went between two looks at the ring: the log gets one line for all of it.
#pragma once

#include "events/event.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tracehook::events {

struct Passed {
    std::uint64_t events = 0;
    std::uint64_t segments = 0;
    std::uint64_t bytes = 0; // of these segments
    std::uint64_t registrations = 0;
    std::uint64_t ranges = 0; // of expandable segments
};

// Takes out of `batch` the events of each segment whose whole life lies in it, if nothing is wrong
// with that life: it was allocated, every registration worked and was undone, it was freed, and no
// other event names it. The same goes for a range of an expandable segment that was mapped and
// unmapped in one piece. Moves the other events to the front, in their order, and returns how many
// they are. The log's thread; allocates, so never in the allocator's callback.
std::size_t take_passed_out(std::span<Event> batch, Passed& passed);

} // namespace tracehook::events
