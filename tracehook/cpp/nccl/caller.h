// Who makes a call into NCCL, as the stack tells. Some microseconds: for rare calls only.
#pragma once

namespace tracehook::nccl {

// Whether the calling thread is inside torch's process group "nccl2" (the default of torch 2.15),
// whose own hook registers every segment with each of its communicators.
bool called_by_nccl2() noexcept;

// Whether the calling thread is inside torch's caching allocator, and so may hold its lock.
bool called_by_allocator() noexcept;

} // namespace tracehook::nccl
