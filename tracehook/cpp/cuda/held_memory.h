// One reference to memory of the driver, and its mapping at addresses that are reserved.
#pragma once

#include "cuda/virtual_memory.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tracehook::cuda {

class HeldMemory {
  public:
    HeldMemory() = default;
    // Of the allocation that is mapped there; none if there is none.
    explicit HeldMemory(std::uintptr_t address) noexcept {
        const auto& driver = virtual_memory();
        is_held_ = driver.passes_memory() && driver.cuMemRetainAllocationHandle(
                                                 &memory, reinterpret_cast<void*>(address)) == 0;
    }
    ~HeldMemory() {
        if (is_held_) {
            virtual_memory().cuMemRelease(memory);
        }
    }
    HeldMemory(const HeldMemory&) = delete;
    HeldMemory& operator=(const HeldMemory&) = delete;

    // After a call that has filled `memory`; returns what that call returned.
    int holds(int status) noexcept {
        is_held_ = status == 0;
        return status;
    }
    explicit operator bool() const noexcept { return is_held_; }
    Memory memory = 0;

  private:
    bool is_held_ = false;
};

inline Access access_of(int device) noexcept {
    return {{1, device}, kReadWrite};
}

// Maps the memory at `size` bytes of addresses that the caller reserved, one access after the
// other. If that fails, the addresses are free again. Returns CUDA's error number.
int map_at(std::uintptr_t place, Memory memory, std::size_t size,
           std::span<const Access> access) noexcept;

} // namespace tracehook::cuda
