// What another process needs to map a piece of our memory: a segment, or the driver's allocations
// that a tensor lies on. Always whole: tensors are named by their offset in it.
#pragma once

#include "ipc/driver.h"

#include <vector>

namespace tracehook::ipc {

// How memory goes to another process. The numbers stand on the wire and in the log.
enum class HandleKind : std::uint8_t {
#define HANDLE_KIND(enumerator, ...) enumerator,
#include "events/handle_kinds.def"
#undef HANDLE_KIND
};

struct Exported {
    HandleKind kind = HandleKind::kNone;
    std::uintptr_t base = 0;
    std::size_t size = 0;       // bytes to map, from the base
    std::size_t allocation = 0; // bytes of each allocation of the driver in it: all are alike
    RuntimeHandle handle{};     // of kind kRuntime
};

// The memory of [address, address + size), and what comes with it: the rest of the allocations of
// cuMemCreate at its edges. Memory of cudaMalloc must begin at `address`. Any thread; `device` is
// where the memory lies. Throws CudaError, or std::runtime_error with one line if this memory
// cannot be shared.
Exported export_memory(std::uintptr_t address, std::size_t size, int device);

// Whether it is memory of cuMemCreate, which has handles for any piece of it.
bool has_handles(std::uintptr_t address) noexcept;

// New descriptors, which the caller closes, of `count` allocations from `base` on. Throws
// CudaError, or std::runtime_error if the memory is gone, and leaves none open then.
std::vector<int> export_files(std::uintptr_t base, std::size_t allocation, std::size_t count);
std::vector<FabricHandle> export_fabric(std::uintptr_t base, std::size_t allocation,
                                        std::size_t count);

} // namespace tracehook::ipc
