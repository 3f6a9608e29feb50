// A peer's segment, mapped into this process. Opened and closed by explicit calls only: a
// destructor may run in a forked child, at exit or in the middle of a capture, where CUDA must not
// be called.
#pragma once

#include "ipc/handle.h"

namespace tracehook::ipc {

struct Mapping {
    HandleKind kind = HandleKind::kNone;
    std::uintptr_t address = 0;
    std::size_t size = 0;
    int device = -1; // the one whose kernels use it: ours
    bool writable = false;
};

// Any thread. `file` stays the caller's. Memory of the runtime's kind is always writable. All throw
// CudaError, and leave nothing behind then.
Mapping open_runtime(const RuntimeHandle& handle, std::size_t size, int device);
Mapping open_file(int file, std::size_t size, int device, bool writable);
void allow_writes(Mapping& mapping);

// The device has finished with it.
void close(const Mapping& mapping);

} // namespace tracehook::ipc
