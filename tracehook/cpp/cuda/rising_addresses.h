// Second addresses of memory, which rise: each lies above all others that are still in use.
//
// Of free blocks of one size torch gives out the one at the lowest address. The driver's addresses
// come in any order, on each rank another one (seen on H200s: SGLang's ranks got different places).
// But ranks with equal programs must get equal places in symmetric memory.
//
// Any thread, also in the allocator's callback and beside captures. Nothing throws or takes the
// GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace tracehook::cuda {

class RisingAddresses {
  public:
    // Maps the whole allocation at `memory` once more, with the access that each device has to it.
    // 0: the driver has no such addresses; nothing is left.
    std::uintptr_t add(std::uintptr_t memory) noexcept;

    // Takes that mapping away, and returns the memory. What add() did not return comes back
    // unchanged. No device uses it any more.
    std::uintptr_t remove(std::uintptr_t address) noexcept;

  private:
    struct Mapping {
        std::uintptr_t memory;
        std::size_t size;
    };

    std::uintptr_t reserve(std::size_t size) const noexcept; // with the mutex

    std::mutex mutex_; // a leaf, but for calls of the driver
    std::map<std::uintptr_t, Mapping> mappings_;
};

} // namespace tracehook::cuda
