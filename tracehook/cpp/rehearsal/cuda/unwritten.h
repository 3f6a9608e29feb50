// Device memory that nobody computed, as far as it is too much to fill at once: ranges that read as
// one byte, repeated, and hold it only when somebody asks for them. So a rehearsal can say of large
// memory that it is NaN, and does not take it.
//
// Whoever reads or writes device memory asks here first, in the order of its stream: copies, the
// emulated NCCL, the computed values. A range lies in memory that only this process reaches, by one
// address alone: what somebody else wrote would be taken for unwritten.
//
// Any thread, except in a forked child. One mutex, which is held while memory is filled, so that
// nobody sees a range half filled. The mutex of the memory comes after it. Never throws, apart from
// std::bad_alloc.
#pragma once

#include "device.h"
#include "leaked.h"
#include "physical.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace tracehook::rehearsal::cuda {

class Unwritten {
  public:
    using Hole = emu_hole;

    static Unwritten& instance() { return leaked<Unwritten>(); }

    bool none() const { return count_.load(std::memory_order_acquire) == 0; }

    // Whether some of [at, at + size) is unwritten.
    bool any(const void* at, size_t size) const;

    // From now on [at, at + size) reads as `byte`. False, and nothing is noted, if not all of it
    // may have such ranges.
    bool note(void* at, size_t size, unsigned char byte);

    // The same, or all of it is written.
    void put(void* at, size_t size, unsigned char byte);

    // Before somebody reads [at, at + size), or writes parts of it: its ranges are filled. False,
    // and nothing is done, if that would take more memory than a tensor that is computed may have.
    bool fill(const void* at, size_t size);

    // All of it is written, or goes.
    void forget(const void* at, size_t size);

    // The ranges in [at, at + size), in their order.
    std::vector<Hole> holes(const void* at, size_t size) const;

    // Others may reach this memory from now on. Its ranges are filled, large ones forgotten.
    void open_to_others(const Physical& memory);

  private:
    struct Range {
        uintptr_t end;
        unsigned char byte;
    };
    using Ranges = std::map<uintptr_t, Range>;

    // These require that mutex_ is held.
    Ranges::const_iterator first_behind(uintptr_t address) const;
    template <typename Visit> void take(uintptr_t begin, uintptr_t end, Visit&& visit);

    std::atomic<size_t> count_{0};
    mutable std::mutex mutex_; // protects ranges_, by their first address
    Ranges ranges_;
};

// As memmove. What is unwritten at `from` is unwritten at `to` afterwards, or is filled there.
void move_bytes(void* to, const void* from, size_t size);

// As memset.
void set_bytes(void* at, int value, size_t size);

} // namespace tracehook::rehearsal::cuda
