// Which registered buffers NCCL really uses, by mapping them into the other processes of the host,
// and what it does at each call with the others.
//
// NCCL tries at every call whose buffer counts. Memory of cudaMalloc cannot be mapped, and nothing
// happens. Memory whose handle cannot be exported is worse: NCCL keeps the handle that it retained
// for the attempt, and the memory never comes back. Each rank decides for itself, so ranks may
// differ, and then NCCL hangs or hands over wrong data: rule L8.
#pragma once

#include "communicator.h"
#include "descriptor.h"
#include "operation.h"

#include <cstdint>
#include <vector>

namespace tracehook::rehearsal::nccl {

// Bits: which buffer of an operation is in effect.
inline constexpr std::uint8_t kSendInEffect = 1;
inline constexpr std::uint8_t kReceiveInEffect = 2;

// What one call does, on the calling thread, under the guard, when the places of its buffers are
// known: marks the records that take effect, counts, and says in `operation` which. `captured`: the
// call goes into a graph.
void put_to_use(Communicator& communicator, Operation& operation, bool captured);

// Rule L10, before a run of what was captured.
void compare_memory(const Communicator& communicator, const Operation& operation);

// Rule L8, on the thread of a stream, holding nothing: of a collective that all ranks called alike,
// and of a message, by what its sender told.
void compare_effects(const Communicator& communicator, const Operation& operation,
                     const std::vector<Descriptor>& all);
void compare_effects(const Communicator& communicator, const Operation& receive,
                     unsigned in_effect_at_sender);

} // namespace tracehook::rehearsal::nccl
