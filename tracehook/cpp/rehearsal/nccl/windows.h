// The windows of one communicator on this rank, and the memory that all ranks mapped for them.
//
// Memory has a *position*: the how-manieth exchange of the communicator it was. Nothing else ties
// the memory of one rank to that of another, and so nothing else stands here: a window is a range
// of this rank's memory at a position, and an operation names the other ranks' bytes by position
// and offset.
//
// The table has a lock of its own that comes after every other but that of the handles: calling
// threads, streams and the observer of a free ask it. Nothing is called while it is held. Handles
// of windows are never used again, so that a dead one is recognised in any communicator.
#pragma once

#include "names.h"
#include "peer_memory.h"
#include "registration.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace tracehook::rehearsal::nccl {

inline constexpr int kCollSymmetric = 1; // NCCL_WIN_COLL_SYMMETRIC

// The pieces of one rank's memory at one position, in the order of their addresses.
using Pieces = std::vector<SharedRange>;
std::size_t bytes_of(const Pieces& pieces);

// What all ranks mapped in one exchange. Does not change once it is in the table.
struct MappedMemory {
    std::int32_t position = 0; // from 1
    Extent extent{};           // this rank's own
    bool whole = true;         // false: NCCL mapped one handle of several
    std::vector<Pieces> ranks;
};

// Where a buffer starts, as NCCL looks it up; position 0 is outside of every window.
struct Placement {
    std::int32_t position = 0;
    std::uint64_t offset = 0;        // in the memory at that position
    bool symmetric = false;          // the window may be used by symmetric kernels
    bool whole = true;               // as of the memory
    bool runs_over = false;          // the buffer ends outside of the window it starts in
    std::shared_ptr<const void> pin; // held as long as the operation may use the window
};

enum class HandleState { kUnknown, kLive, kDeregistered, kEnded };

// Of any communicator of this process. kEnded: its communicator was ended before it.
HandleState window_state(Window handle);

class WindowTable {
  public:
    ~WindowTable();

    // One exchange, in the order in which they are made; under the guard.
    std::uint64_t next_exchange() { return ++exchanges_; }

    // Memory whose first byte is `base`, if it is mapped for a window now.
    std::shared_ptr<const MappedMemory> mapped_at(std::uintptr_t base) const;
    // What the windows map, each memory as often as NCCL would.
    std::size_t mapped_bytes() const;

    // Keeps what was exchanged: others may use it before this rank's window exists.
    void keep(const std::shared_ptr<const MappedMemory>& memory);
    Window add(const std::shared_ptr<const MappedMemory>& memory, Extent extent, int flags,
               void* registration);

    struct Removed {
        Extent extent;
        void* registration;
        bool in_use; // an operation that was launched may still use it
    };
    // Nothing if it is not a live window of this communicator.
    std::optional<Removed> remove(Window handle);

    Placement find(const void* pointer, std::size_t size) const;
    std::shared_ptr<const MappedMemory> memory(std::int32_t position) const;
    std::optional<Extent> overlapping(Extent extent) const;
    // The windows on memory that is about to be unmapped; each is named only once.
    std::vector<Extent> take_freed(std::uintptr_t base, std::size_t size);
    std::size_t size() const;

    // Differs between ranks whose registrations and deregistrations came in different orders.
    std::uint64_t history() const;

    // After a registration that failed the state of the ranks is unknown.
    void poison() { poisoned_ = true; }
    bool poisoned() const { return poisoned_; }

    // The communicator is ended: no handle is good any more.
    void end();

  private:
    struct Entry {
        Window handle;
        Extent extent;
        int flags;
        void* registration;
        std::uint64_t ordinal;
        bool freed;
        std::shared_ptr<const MappedMemory> memory;
        std::shared_ptr<const void> pin;
    };

    mutable std::mutex mutex_; // protects what follows
    std::vector<Entry> entries_;
    std::vector<std::shared_ptr<const MappedMemory>> kept_; // by position
    std::uint64_t added_ = 0;
    std::uint64_t history_ = 0;

    std::atomic<bool> poisoned_{false};
    std::uint64_t exchanges_ = 0;
};

} // namespace tracehook::rehearsal::nccl
