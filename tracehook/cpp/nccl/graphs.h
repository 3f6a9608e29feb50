// Notices the end of CUDA graphs that were captured with collectives of a communicator.
#pragma once

#include "nccl/abi.h"
#include "windows/communicator_windows.h"

namespace tracehook::nccl {

// The graph that `stream` is captured into counts in CommunicatorWindows::graphs() until it, and
// all that was instantiated from it, is destroyed. By the thread that captures. Without CUDA 12.3
// it never counts.
void follow_graph(const registrar::Communicator& communicator, Stream stream) noexcept;

} // namespace tracehook::nccl
