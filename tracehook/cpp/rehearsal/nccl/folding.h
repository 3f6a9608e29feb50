// The reduction of what all ranks hold, piece by piece, wherever it is read from.
//
// On the thread of a stream, holding nothing.
#pragma once

#include "descriptor.h"

#include <functional>
#include <vector>

namespace tracehook::rehearsal::nccl {

// Reads `size` bytes of what `rank` contributes, from byte `offset` of it. False if it is gone.
using ReadRank =
    std::function<bool(std::size_t rank, std::size_t offset, std::byte* out, std::size_t size)>;

// out = the `count` elements of all ranks reduced, as the descriptors say. False if a read failed.
bool fold_ranks(const std::vector<Descriptor>& ranks, std::size_t count, const ReadRank& read,
                std::byte* out);

} // namespace tracehook::rehearsal::nccl
