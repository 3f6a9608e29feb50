// Where the caching allocator's segments come from, and go to. Stands in libc10_cuda's slots for
// cudaMalloc and cudaFree.
//
// A segment that a busy communicator holds is not freed when the allocator frees it, but when it is
// deregistered (registrar/grave.h). That holds for all that came by our slot. What is older, comes
// from a pool with functions of its own or is expandable did not: its free waits for the
// communicator. So it is where another library stands in these slots.
//
// With SYMM_REGISTER_MEMORY=vmm segments come from the driver's virtual memory, with a handle that
// goes to other processes, in place of cudaMalloc. Then we stand in torch's slots, too, for what
// works on such memory in another way (segment_sharing.cpp): legacy IPC handles
// (torch.multiprocessing shares tensors by them) and access between the devices of a process. For
// the handles we stand in the slots of other libraries as well.
//
// The functions in the slots run in the allocator, with its device lock held and on any thread.
// Nothing throws or takes the GIL. The one lock is a leaf, and is not held during a call into CUDA.
//
// Memory of cudaMalloc goes by cudaFree, which waits for the device. So what nobody holds any more
// is idle, until a thread of that device waits for it anyway: in the next free, in the end of a
// communicator, or because the device has no room.
#pragma once

#include "cuda/segment_memory.h"
#include "elf/slots.h"
#include "registrar/registrar.h"

#include <cstddef>
#include <string>
#include <vector>

namespace tracehook::torch {

// The memory of segments, and the keeping of what was freed too early.
class SourcedMemory final : public cuda::SegmentMemory {
  public:
    bool can_keep(const registrar::Segment& segment) noexcept override;
    void keep(const registrar::Segment& segment) noexcept override;
    void let_go(const registrar::Segment& segment) noexcept override;
    bool free_idle(int device) noexcept override;
};

// With `virtual_memory` segments come from there: to be asked for before CUDA is up. Any number of
// times; a forked child's registrar takes the place of its parent's. Returns "" or why all stays as
// it is. Throws std::runtime_error if a slot cannot be written.
std::string replace_segment_source(registrar::Registrar& registrar, bool virtual_memory);

// The functions for legacy IPC handles, for the slots of other libraries than torch's: a program's
// own kernels share torch's memory by them (custom all_reduce). Empty if segments are cudaMalloc's.
std::vector<elf::Beside> sharing_calls();

// Whether the memory there did not come through our slot, although all that torch itself allocates
// now does: by an allocator of the program. False while we stand in no slot. In the allocator's
// callback.
bool is_made_elsewhere(std::uintptr_t address) noexcept;

// What became of it. Any thread.
struct SourceTold {
    bool replaced = false;
    std::size_t segments = 0; // that live, from virtual memory
    std::size_t bytes = 0;
    int refused = 0; // requests that went to cudaMalloc, because the device has no such memory
};
SourceTold segment_source() noexcept;

} // namespace tracehook::torch
