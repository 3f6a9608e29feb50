// The memory of segments, as the driver has it: what it is, a second mapping of it, and new memory
// that other processes can map.
//
// Any thread, also in the allocator's callback and beside captures. Nothing throws or takes the
// GIL.
#pragma once

#include "registrar/segment_memory.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tracehook::cuda {

class SegmentMemory : public registrar::SegmentMemory {
  public:
    registrar::MemoryKind kind_of(std::uintptr_t address) noexcept override;
    bool has_memory(std::uintptr_t address) noexcept override;
    std::uintptr_t map_again(const registrar::Segment& segment) noexcept override;
    void unmap(const registrar::Segment& segment, std::uintptr_t alias,
               bool is_done) noexcept override;
};

// Least size of such memory, and what its size is a multiple of: 2 MiB, as that of all large pages.
inline constexpr std::size_t kGranularity = std::size_t{2} << 20;

// Whether a device can make memory for other processes to map, by file descriptors.
bool makes_shareable(int device) noexcept;

// One allocation of `size` bytes on `device`, mapped here, with access for `device` and for the
// devices in `also`. Returns CUDA's error number; 2 (cudaErrorMemoryAllocation) if there is no
// room.
int allocate_shareable(std::uintptr_t* address, std::size_t size, int device,
                       std::span<const int> also) noexcept;
// Waits for the device first, as cudaFree does, unless that `is_done`.
int free_shareable(std::uintptr_t address, std::size_t size, int device, bool is_done) noexcept;
int allow_access(std::uintptr_t address, std::size_t size, int device) noexcept;

// A descriptor of the memory for another process, or -1; the caller closes it.
int export_descriptor(std::uintptr_t address) noexcept;
// Maps what such a descriptor stands for, with access for `device`.
int map_descriptor(std::uintptr_t* address, int descriptor, std::size_t size, int device) noexcept;
int unmap(std::uintptr_t address, std::size_t size) noexcept;

} // namespace tracehook::cuda
