// The uses of windows that the ranks of one communicator agreed on: a set that only grows, with
// open addressing, because every call on a window looks one up.
//
// Not for several threads: Windows guards it with its mutex.
#pragma once

#include "windows/placement.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tracehook::windows {

inline constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;

constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t value,
                            std::uint64_t odd = kOdd) noexcept {
    state = (state ^ value) * odd;
    return state ^ (state >> 29);
}

// Equal on all ranks for equal uses. The sides are hashed apart, so that the processor does both at
// once, and by other numbers, or equal sides would cancel each other out.
constexpr std::uint64_t hash_of(const Use& use) noexcept {
    constexpr auto number = [](const Place& place) {
        return place.offset + (std::uint64_t{place.window} << 40);
    };
    const std::uint64_t send =
        mix(use.operation | std::uint64_t{use.config} << 32, number(use.send));
    const std::uint64_t receive = mix(0, number(use.receive), 0xbf58476d1ce4e5b9);
    return mix(send, std::rotl(receive, 32));
}

class KnownUses {
  public:
    // `hash`: hash_of(use).
    bool contains(const Use& use, std::uint64_t hash) const noexcept {
        return !slots_.empty() && slots_[slot_of(use, hash)].place != 0;
    }
    void insert(const Use& use, std::uint64_t hash) {
        if (2 * (uses_.size() + 1) > slots_.size()) {
            grow();
        }
        if (Slot& slot = slots_[slot_of(use, hash)]; slot.place == 0) {
            uses_.push_back(use);
            slot = {tag_of(hash), static_cast<std::uint32_t>(uses_.size())};
        }
    }

  private:
    struct Slot { // small, so that all of them stay in the processor's cache
        std::uint32_t tag = 0;
        std::uint32_t place = 0; // 1 + that in uses_; 0: free
    };
    static std::uint32_t tag_of(std::uint64_t hash) noexcept { return hash; }

    // Where the use is, or would be. Half of the slots are free, so the search ends.
    std::size_t slot_of(const Use& use, std::uint64_t hash) const noexcept {
        const std::size_t last = slots_.size() - 1;
        std::size_t at = hash >> 32 & last;
        while (slots_[at].place != 0 &&
               !(slots_[at].tag == tag_of(hash) && uses_[slots_[at].place - 1] == use)) {
            at = (at + 1) & last;
        }
        return at;
    }
    void grow() {
        slots_.assign(slots_.empty() ? 16 : 2 * slots_.size(), {});
        for (std::uint32_t i = 0; i < uses_.size(); ++i) {
            const std::uint64_t hash = hash_of(uses_[i]);
            slots_[slot_of(uses_[i], hash)] = {tag_of(hash), i + 1};
        }
    }

    std::vector<Slot> slots_; // a power of two
    std::vector<Use> uses_;
};

} // namespace tracehook::windows
