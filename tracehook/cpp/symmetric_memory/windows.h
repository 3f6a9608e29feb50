// The windows of one communicator, and the ways in which collectives have used them so far.
//
// A *use* is new the first time and known afterwards; who meets a new one compares it with the
// other ranks before the call goes on, then calls accept(). Every use, in order, goes into a digest
// that is equal on all ranks as long as their collectives used equal places, which is how a later
// swap between two known uses is found.
//
// Any thread. The mutex is a leaf: nothing is called while it is held. It is not the gate's: a
// collective looks its buffers up before it enters the gate.
#pragma once

#include "symmetric_memory/placement.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

namespace tracehook::core {

struct Window {
    std::uint32_t ordinal =
        0; // position in the sequence of this communicator's windows; equal on all ranks
    std::uint64_t segment = 0; // the bank's id
    std::uintptr_t address = 0;
    std::size_t size = 0; // bytes
    void* handle = nullptr;
    bool pinned = false; // a captured graph uses it

    std::uintptr_t end() const noexcept { return address + size; }
};

class Windows {
  public:
    // One load, for the way of every collective.
    bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
    std::size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
    std::uint32_t next_ordinal() const noexcept; // what install() gives next

    void install(Window window); // gives it its ordinal
    std::optional<Window> remove(std::uint64_t segment);
    std::vector<Window> remove_all();
    std::vector<Window> list() const; // by ordinal
    bool holds_segment(std::uint64_t segment) const;
    // The window that holds all of [address, address + size).
    std::optional<Window> covering(std::uintptr_t address, std::size_t size) const;

    struct Lookup {
        Use use;    // what has to be equal on all ranks
        Place send; // where the buffers really are
        Place receive;
        bool known = false;
        bool milestone = false; // time to log the digest
        bool unpinned = false;  // a window that no captured graph is known to use is part of it
    };
    enum class Count { kKnown, kNone };
    // Finds the places of a call. Unless told otherwise a known use is counted; a new one is only
    // when it is accepted.
    Lookup look(std::uint32_t operation, const Side& send, const Side& receive,
                Count count = Count::kKnown) noexcept;
    void accept(const Lookup& look);

    // A captured graph uses these places: their windows stay until unpin_all().
    void pin(const Lookup& look) noexcept;
    void unpin_all() noexcept;

    struct Digest {
        std::uint64_t uses = 0; // since the communicator's first window
        std::uint64_t value = 0;
    };
    Digest digest() const;

  private:
    struct Hash {
        std::size_t operator()(const Use& use) const noexcept;
    };

    Place place(const Side& side, bool* unpinned) const noexcept;
    const Window* window_at(std::uintptr_t address) const noexcept;
    void count_use(const Use& use) noexcept;

    std::atomic<std::size_t> count_{0};
    mutable std::mutex mutex_;    // everything below
    std::vector<Window> windows_; // by address
    std::unordered_set<Use, Hash> known_;
    std::uint32_t next_ordinal_ = 0;
    Digest digest_;
};

} // namespace tracehook::core
