// What ncclCommRegister keeps: an exact model of the registration cache of one communicator.
//
// Ranges are widened to pages and kept sorted by begin. A range that lies in an earlier record gets
// that record's handle again and counts a reference; any other, also one that overlaps, gets a
// record of its own. Lookup needs one record that holds the whole buffer: neighbours are not
// merged.
//
// What a handle points to begins as NCCL's own record does from 2.27 to 2.30, because programs may
// look there whether the registration has an effect.
//
// Has a lock of its own that comes after every other, because the observer of a free asks from any
// thread: nothing is called while it is held, the emulated device least of all. Handles are never
// reused, so that a second deregistration is always recognised.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace tracehook::rehearsal::nccl {

struct Extent {
    std::uintptr_t begin;
    std::uintptr_t end;
};

// Who holds a reference: the client, or a window, which has a registration of its own.
enum class Holder { kClient, kWindow };

struct RecordHead {
    Extent pages;
    int local_references;
    int graph_references;
    std::atomic<std::uint32_t> state; // kInEffect or 0
};
static_assert(offsetof(RecordHead, pages) == 0 && sizeof(Extent) == 16);
static_assert(offsetof(RecordHead, local_references) == 16);
static_assert(offsetof(RecordHead, state) == 24 && sizeof(RecordHead::state) == 4);

// NCCL's bit of the state: other processes of the host have mapped the memory.
inline constexpr std::uint32_t kInEffect = 0x20;

class RegistrationCache {
  public:
    void* add(std::uintptr_t begin, std::size_t size, Holder holder = Holder::kClient);

    // Nothing if `handle` is not registered here by such a holder.
    struct Removed {
        Extent extent;
        bool in_use; // the record went, and an operation that was given it still runs
    };
    std::optional<Removed> remove(void* handle, Holder holder = Holder::kClient);
    bool holds(void* handle, Holder holder) const;

    // The record that holds all of [pointer, pointer + size), null if none does. It is in use as
    // long as somebody keeps what this returns.
    std::shared_ptr<const void> covers(const void* pointer, std::size_t size) const;

    // Marks the record that holds all of [begin, end), if one does, and says whether messages were
    // the first to use it.
    bool mark_in_effect(std::uintptr_t begin, std::uintptr_t end, bool by_messages);

    // The extents registered by the client that overlap memory which is about to be unmapped; each
    // is named only once.
    std::vector<Extent> take_freed(std::uintptr_t base, std::size_t size);

    // Without what only windows hold.
    std::size_t size() const;

  private:
    struct Record {
        RecordHead head;
        Extent exact; // as first registered: a neighbour on the same page is not ours
        std::array<int, 2> references; // by holder
        bool freed = false;
        std::optional<bool> first_by_messages{}; // what used it first; nothing yet: empty
        std::shared_ptr<const void> use = std::make_shared<const char>();

        int& of(Holder holder) { return references[static_cast<std::size_t>(holder)]; }
        bool held_by(Holder holder) const {
            return references[static_cast<std::size_t>(holder)] != 0;
        }
    };

    std::vector<Record*>::const_iterator find(const void* handle) const;
    // The first that holds all of [begin, end), null if none does.
    Record* holder_of(std::uintptr_t begin, std::uintptr_t end) const;

    mutable std::mutex mutex_; // protects records_; comes last
    std::vector<Record*> records_;
};

} // namespace tracehook::rehearsal::nccl
