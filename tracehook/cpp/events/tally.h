// How many collectives of each kind a communicator had: all that NCCL's path depends on, and how
// many.
//
// One writer at a time, the thread inside the communicator's gate, with plain stores. Anybody may
// read meanwhile, other processes too: `log/tallies.py` knows the same layout. Which path a kind
// takes is not known here: `tracehook/nccl/counts.py` asks the rules of NCCL.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tracehook::events {

class Tally {
  public:
    static constexpr std::size_t kEntries = 256; // kinds of calls; what finds no room is `kOther`

    // A kind: operation, type << 8, reduction << 16, bucket << 24, and these.
    static constexpr unsigned kBucketShift = 24; // 0: no bytes, else 1 + the power of two
    static constexpr std::uint64_t kSends = std::uint64_t{1} << 32;    // from a window
    static constexpr std::uint64_t kReceives = std::uint64_t{1} << 33; // into a window
    static constexpr std::uint64_t kCaptured = std::uint64_t{1} << 34; // into a graph
    // Other calls of the communicator were in its NCCL group; and some had its operation, type and
    // reduction.
    static constexpr std::uint64_t kGrouped = std::uint64_t{1} << 35;
    static constexpr std::uint64_t kAlike = std::uint64_t{1} << 36;
    static constexpr std::uint64_t kKind = std::uint64_t{1} << 63; // every kind has it
    static constexpr std::uint64_t kOther = ~std::uint64_t{0};

    static constexpr std::uint64_t bucketed(std::uint64_t kind, std::uint64_t nbytes) noexcept {
        return kind | static_cast<std::uint64_t>(std::bit_width(nbytes)) << kBucketShift | kKind;
    }

    // By the thread inside the gate. `kind` without its bucket.
    void add(std::uint64_t kind, std::uint64_t nbytes) noexcept {
        Slot& slot = place_of(bucketed(kind, nbytes));
        set(slot.count, get(slot.count) + 1);
        set(slot.nbytes, get(slot.nbytes) + nbytes);
        if (nbytes < get(slot.least)) {
            set(slot.least, nbytes);
        }
        if (nbytes > get(slot.most)) {
            set(slot.most, nbytes);
        }
    }

    struct Entry {
        std::uint64_t kind;
        std::uint64_t count;
        std::uint64_t nbytes; // of all of them
        std::uint64_t least;  // of one
        std::uint64_t most;
    };
    std::vector<Entry> entries() const;
    void clear() noexcept; // nobody writes

  private:
    using Word = std::atomic<std::uint64_t>;
    struct Slot {
        Word kind{0}; // written last
        Word count{0};
        Word nbytes{0};
        Word least{0};
        Word most{0};
    };
    static_assert(sizeof(Slot) == 40);

    static std::uint64_t get(const Word& word) noexcept {
        return word.load(std::memory_order_relaxed);
    }
    static void set(Word& word, std::uint64_t value) noexcept {
        word.store(value, std::memory_order_relaxed);
    }
    // Programs repeat few kinds: nearly always the first look finds it.
    Slot& place_of(std::uint64_t kind) noexcept {
        std::size_t at = (kind * 0x9E3779B97F4A7C15ULL) >> 56;
        for (std::size_t looks = 0; looks < kEntries; ++looks, at = (at + 1) % kEntries) {
            const std::uint64_t found = get(slots_[at].kind);
            if (found == kind) {
                return slots_[at];
            }
            if (found == 0) {
                return taken(slots_[at], kind);
            }
        }
        return get(other_.kind) == 0 ? taken(other_, kOther) : other_;
    }
    static Slot& taken(Slot& slot, std::uint64_t kind) noexcept {
        set(slot.least, ~std::uint64_t{0});
        slot.kind.store(kind, std::memory_order_release);
        return slot;
    }

    std::array<Slot, kEntries> slots_{};
    Slot other_{};
};
static_assert(Tally::kEntries == 256, "place_of() takes eight bits");
static_assert(sizeof(Tally) == (Tally::kEntries + 1) * 40, "the ring's file format depends on it");

} // namespace tracehook::events
