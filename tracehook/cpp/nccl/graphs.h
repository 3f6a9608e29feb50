// Notices the end of CUDA graphs that were captured with collectives of a communicator.
#pragma once

#include "nccl/abi.h"
#include "registrar/registrar.h"

namespace tracehook::nccl {

// The graph that `stream` is captured into counts in `graphs` until it, and all that was
// instantiated from it, is destroyed. By the thread that captures. Without CUDA 12.3 it never
// counts.
void follow_graph(const std::shared_ptr<registrar::LiveGraphs>& graphs, Stream stream) noexcept;

// Inside the gate, before a call that NCCL makes messages of. If it is captured, NCCL itself maps
// its buffers into other processes, for as long as the graph lives, unless NCCL_GRAPH_REGISTER=0:
// the registrar hears which of them a library may take away.
void note_captured(registrar::Registrar& registrar, registrar::Communicator& communicator,
                   std::initializer_list<const void*> buffers, Stream stream) noexcept;

} // namespace tracehook::nccl
