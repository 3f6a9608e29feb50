// Page-locked host memory: what cudaHostAlloc made and what cudaHostRegister declared.
//
// Any thread, except in a forked child. Locking pages is not emulated, only the book that tells
// such memory from ordinary memory.
#pragma once

#include "leaked.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace tracehook::rehearsal::cuda {

class HostMemory {
  public:
    static HostMemory& instance() { return leaked<HostMemory>(); }

    // Zeroed and page-aligned; null if the system has no memory. `free` is false for what
    // `allocate` did not give.
    void* allocate(size_t size, int device);
    bool free(void* pointer);

    // False if it overlaps what is already known; false if it was not added.
    bool add(void* pointer, size_t size, int device);
    bool remove(void* pointer);

    // Whether `pointer` lies in known memory; the device that was current then goes to *device.
    bool find(const void* pointer, int* device) const;

  private:
    struct Block {
        size_t size;
        int device;
        bool allocated;
    };

    // The size of what is known no longer from now on; 0 if there is no such.
    size_t take(void* pointer, bool allocated);

    // Both require that mutex_ is held.
    std::map<uintptr_t, Block>::const_iterator holder(uintptr_t address) const;
    bool overlaps(uintptr_t address, size_t size) const;

    // Protects blocks_. Nothing is locked while it is held.
    mutable std::mutex mutex_;
    std::map<uintptr_t, Block> blocks_;
};

} // namespace tracehook::rehearsal::cuda
