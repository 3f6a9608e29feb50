// A tensor on a peer's memory, as torch takes it: a DLPack capsule of bytes. While torch has it, a
// lease on the mapping lasts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tracehook::ipc {

// How many tensors lie on a piece of a peer's memory.
using Leases = std::shared_ptr<std::atomic<std::int64_t>>;

// DLManagedTensor of dlpack.h 0.x, which torch takes as a capsule named "dltensor".
struct DlTensor {
    void* data;
    std::int32_t device_type;
    std::int32_t device;
    std::int32_t dimensions;
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t offset;
    void* context;
    void (*deleter)(DlTensor*);
};

// `size` bytes on CUDA device `device`, one lease. Its deleter runs on any thread, with or without
// the GIL, perhaps at exit or in a forked child: it counts, and calls nothing.
DlTensor* lend(std::uintptr_t address, std::size_t size, int device, const Leases& leases);

} // namespace tracehook::ipc
