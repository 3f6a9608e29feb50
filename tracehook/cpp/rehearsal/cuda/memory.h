// Live device memory by address: what cudaMalloc and the driver's virtual memory calls made, and
// who wants to know of its end.
//
// Any thread, except in a forked child (where every question is answered "no" without a lock). No
// function waits for streams: the caller does, where the runtime promises it. Never throws, apart
// from std::bad_alloc.
#pragma once

#include "backing.h"
#include "leaked.h"
#include "physical.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace tracehook::rehearsal::cuda {

// Which function ends it: free, unmap or disown.
enum class Kind { kOwned, kMapped, kForeign };

// What cuMemSetAccess allows a device.
enum class Access { kNone = 0, kRead = 1, kReadWrite = 3 };

struct Allocation {
    uintptr_t base;
    size_t size;   // as asked for
    size_t mapped; // rounded up to kGranularity
    int device;
    Kind kind;
    Physical::Pointer physical; // null for kForeign
    uint64_t offset = 0;        // of the first byte in the file of `physical`
    bool has_handle = false;    // made by the driver's virtual memory calls, or as if by them
    bool dying = false;
    uint64_t readers = 0; // the devices that cuMemSetAccess named, a bit each
    uint64_t writers = 0;
};

class Memory {
  public:
    using FreeObserver = void (*)(uintptr_t base, size_t size);

    static Memory& instance() { return leaked<Memory>(); }

    // Null if the device is full. Zeroed, aligned to kGranularity; with a handle it is shareable.
    void* allocate(size_t size, int device, bool has_handle = false);

    // False if `pointer` is not the base of what `allocate` gave. The observer is called before the
    // memory goes.
    bool free(void* pointer);

    // Maps a part of `physical` at reserved addresses, without access. False if something is there.
    bool map(void* address, const Physical::Pointer& physical, size_t offset, size_t size);

    // Takes mappings away, or says what `device` may do there. False, and nothing is done, unless
    // [address, address + size) is made of whole mappings, side by side.
    bool unmap(void* address, size_t size);
    bool set_access(void* address, size_t size, int device, Access access);

    // Makes addresses outside of the window (memory of another process) known as device memory, and
    // forgets them.
    void adopt(void* address, size_t size, int device);
    bool disown(void* address);

    // The live allocation that holds all of [pointer, pointer + size).
    std::optional<Allocation> find(const void* pointer, size_t size) const;

    // The live allocations behind which `physical` lies.
    std::vector<Allocation> mappings_of(const Physical& physical) const;

    void observe_frees(FreeObserver observer) { observer_.store(observer); }

  private:
    // Marks the allocation at `address` as dying so that only one thread ends it; none if there is
    // no such.
    std::optional<Allocation> condemn(void* address, Kind kind);
    // The mappings that [address, address + size) is made of; none if it is not. Requires mutex_.
    std::vector<Allocation*> mappings(uintptr_t address, size_t size);
    void notify(const Allocation& allocation) const;
    void insert(const Allocation& allocation);
    void erase(uintptr_t base);

    std::atomic<FreeObserver> observer_{nullptr};

    // Protects live_. Comes before nothing: the backing's mutex is never taken while it is held.
    mutable std::mutex mutex_;
    std::map<uintptr_t, Allocation> live_;
};

} // namespace tracehook::rehearsal::cuda
