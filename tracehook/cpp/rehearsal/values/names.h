// Which of PyTorch's operations a rehearsal treats in which way, by their names without a
// namespace.
//
// Any thread, nothing held.
#pragma once

#include <regex>
#include <string>

namespace tracehook::rehearsal::values {

// These only make views, move memory, wait, or are made of operations that are computed.
extern const std::regex left_alone;
extern const std::regex sized_by_values;
// Their CUDA kernels call cuDNN, cuFFT, cuSOLVER or MAGMA, or ask the device how large something
// is.
extern const std::regex without_original;
extern const std::regex products;
// Operations on sparse tensors whose CUDA kernels call cuSPARSE or count on the device.
extern const std::regex for_sparse;
// PyTorch's kernels that reach into the memory of other ranks, and have no CPU kernel: told of.
extern const std::regex between_ranks;
// Other operations move memory with them, and expect to find it moved.
extern const std::regex part_of_others;

// Whether it writes all of its first argument and reads nothing of it; the name with the namespace.
bool overwrites_first_argument(const std::string& name);

// Whether its CUDA kernel asserts that it writes within bounds; the name with the namespace.
bool writes_at_an_index(const std::string& name);

// Those on CUDA tensors that make nested or quantized ones of them, with the namespace: their CUDA
// kernels read values on the way.
extern const std::regex makes_other_kinds;

} // namespace tracehook::rehearsal::values
