// Who makes a communicator: some makers register segments with it by themselves.
#pragma once

namespace tracehook::nccl {

// Whether the calling thread is inside torch's process group "nccl2" (the default of torch 2.15),
// whose own hook registers every segment with each of its communicators. Walks the stack, some
// microseconds: for calls that make communicators only.
bool called_by_nccl2() noexcept;

} // namespace tracehook::nccl
