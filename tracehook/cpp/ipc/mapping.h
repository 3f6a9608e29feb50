// A peer's memory, mapped into this process. Mapped and unmapped by explicit calls only: a
// destructor may run in a forked child, at exit or in the middle of a capture, where CUDA must not
// be called.
#pragma once

#include "ipc/handle.h"

namespace tracehook::ipc {

struct Mapping {
    HandleKind kind = HandleKind::kNone;
    std::uintptr_t address = 0;
    std::size_t size = 0;
    std::size_t allocation = 0; // bytes of each allocation of the driver in it
    int device = -1;            // the one whose kernels use it: ours
    bool writable = false;
};

// What a peer's memory of cuMemCreate is mapped from: its allocations, in the order of their
// addresses. They keep the memory until they are released.
using Allocations = std::vector<Memory>;

// Any thread. What came for `device` is added at the end; `file` stays the caller's. Throw
// CudaError, or std::runtime_error if this driver has no such memory.
void import_file(Allocations& into, int file, int device);
void import_fabric(Allocations& into, const FabricHandle& handle, int device);
void release(Allocations& allocations) noexcept;

// Any thread. Memory of the runtime's kind is always writable. All throw CudaError, and leave
// nothing behind then; what is mapped needs the allocations no more.
Mapping map_runtime(const RuntimeHandle& handle, std::size_t size, int device);
Mapping map_allocations(const Allocations& allocations, HandleKind kind, std::size_t size,
                        int device, bool writable);
void allow_writes(Mapping& mapping);

// The caller has waited for the device.
void unmap(const Mapping& mapping);

} // namespace tracehook::ipc
