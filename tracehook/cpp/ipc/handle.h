// What another process needs to map one of our segments. Always the whole segment: tensors are
// named by their offset in it.
#pragma once

#include "ipc/driver.h"

namespace tracehook::ipc {

// How a segment goes to another process. The numbers stand on the wire and in the log.
enum class HandleKind : std::uint8_t {
    kNone = 0,    // no memory: a tensor without elements
    kRuntime = 1, // the 64 bytes of cudaIpcGetMemHandle
    kFile = 2,    // a file descriptor, passed beside the message
};

struct Exported {
    HandleKind kind = HandleKind::kNone;
    std::size_t size = 0; // bytes to map, from the segment's first
    RuntimeHandle handle{};
};

// Any thread; `device` is where the memory lies. Throws CudaError, or std::runtime_error with one
// line if this memory cannot be shared.
Exported export_segment(std::uintptr_t base, std::size_t size, int device);

// A new descriptor of a segment of kind kFile, which the caller closes. Throws CudaError.
int export_file(std::uintptr_t base);

} // namespace tracehook::ipc
