// How much a rehearsal computes on the host.
//
// Any thread, nothing held. The variables are read once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

namespace tracehook::rehearsal::values {

// The most elements of a tensor that is computed, or read to compute another one
// (TRACEHOOK_EMU_VALUES); 0: nothing is computed but what decides about sizes.
int64_t most_elements();

// Whether an operation on these arguments and results is within the limit. A product may have
// sixteen times as many multiplications.
bool is_within_limits(const std::vector<c10::IValue>& arguments,
                      const std::vector<c10::IValue>& results, bool product);

} // namespace tracehook::rehearsal::values
