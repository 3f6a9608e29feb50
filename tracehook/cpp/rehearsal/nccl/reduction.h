// What NCCL's reductions compute, element by element, for every data type.
//
// Values of 16 bits and less are added up as float and rounded once at the end; integers wrap
// around. No state, any thread.
#pragma once

#include "descriptor.h"
#include "names.h"

#include <cstddef>
#include <functional>
#include <vector>

namespace tracehook::rehearsal::nccl {

// Bytes of one element; 0 if there is no such type.
std::size_t element_size(DataType type);
const char* type_name(DataType type);
// By name; everything from kNumOps up is "premulsum".
const char* operator_name(int op);

// Reads `size` bytes of what `rank` contributes, from byte `offset` of it. False if it is gone.
using ReadRank =
    std::function<bool(std::size_t rank, std::size_t offset, std::byte* out, std::size_t size)>;

// out = the `count` elements of all ranks reduced, as the descriptors say, piece by piece. False if
// a read failed. On the thread of a stream, holding nothing.
bool fold_ranks(const std::vector<Descriptor>& ranks, std::size_t count, const ReadRank& read,
                std::byte* out);

} // namespace tracehook::rehearsal::nccl
