// Where the caching allocator's segments come from: with SYMM_REGISTER_MEMORY=vmm from the driver's
// virtual memory, with a handle that goes to other processes, in place of cudaMalloc.
//
// Stands in libc10_cuda's slots for cudaMalloc and cudaFree, and in torch's slots for what works on
// such memory in another way: legacy IPC handles (torch.multiprocessing shares tensors by them) and
// access between the devices of a process.
//
// The functions in the slots run in the allocator, with its device lock held and on any thread.
// Nothing throws or takes the GIL. The one lock is a leaf, and is not held during a call into CUDA.
#pragma once

#include <cstddef>
#include <string>

namespace tracehook::torch_hook {

// Once a process, before CUDA is up. Returns "" or why segments stay as they are. Throws
// std::runtime_error if a slot cannot be written.
std::string replace_segment_source();

// What became of it. Any thread.
struct SourceTold {
    bool replaced = false;
    std::size_t segments = 0; // that live, from virtual memory
    std::size_t bytes = 0;
    int refused = 0; // requests that went to cudaMalloc, because the device has no such memory
};
SourceTold segment_source() noexcept;

} // namespace tracehook::torch_hook
