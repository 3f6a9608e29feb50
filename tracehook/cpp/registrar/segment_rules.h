// Which segments stay unregistered although tracehook could register them: rules that the program
// chose, once, before there is a segment. A segment is left out with a communicator if one rule
// fits both.
//
// A segment's birth happens in the allocator's callback, so a rule is data. What fits a segment is
// asked once, at its birth, and what fits a communicator at its own: each is a set of bits, and the
// answer is whether they have one in common.
#pragma once

#include "registrar/registration_calls.h"
#include "registrar/segment.h"

#include <climits>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tracehook::registrar {

// Fits what has all of this.
struct SegmentRule {
    static constexpr std::uint32_t kAny = ~std::uint32_t{0};

    std::uint32_t pools = kAny;    // a bit for each PoolKind
    std::uint32_t memories = kAny; // a bit for each MemoryKind
    std::size_t below = 0;         // bytes; 0: segments of all sizes
    int least_ranks = 0;           // of the communicator
    int most_ranks = INT_MAX;
    bool one_host = true; // communicators of one host
    bool across = true;   // and those of several

    bool is_of_segments() const noexcept { // not of all
        return pools != kAny || memories != kAny || below != 0;
    }
};

class SegmentRules {
  public:
    static constexpr std::size_t kMost = 16;

    // Not thread-safe: to be called before there is a segment or a communicator. Rules beyond kMost
    // are ignored. The first rule, which is always there, is not among them: no communicator gets
    // memory that a library can take away (pausable.h).
    void set(const std::vector<SegmentRule>& rules);

    // Any thread; the first also in the allocator's callback.
    std::uint16_t that_fit(std::size_t size, MemoryKind memory, PoolKind pool) const noexcept;
    std::uint16_t that_spare(const Identity& communicator) const noexcept;
    // Whether such a communicator gets no segment at all.
    bool leave_all_out(std::uint16_t spared) const noexcept { return (of_all_ & ~spared) != 0; }

  private:
    std::vector<SegmentRule> rules_{
        {.memories = std::uint32_t{1} << static_cast<unsigned>(MemoryKind::kPausable)}};
    std::uint16_t of_all_ = 0; // the rules that fit every segment
};

} // namespace tracehook::registrar
