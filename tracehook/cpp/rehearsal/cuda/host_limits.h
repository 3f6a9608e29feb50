// How much of the machine that it runs on a rehearsal may take to compute values.
//
// Any thread, nothing held. The variable is read once.
#pragma once

#include <cstdint>

namespace tracehook::rehearsal::cuda {

// The most elements of a tensor that is computed, or read to compute another one
// (TRACEHOOK_EMU_VALUES); 0: none.
int64_t most_values();

// Whether so little memory is left that only small tensors may be computed: the memory of emulated
// devices is only taken when somebody writes to it.
bool memory_is_short();
inline constexpr int64_t kSmallTensor = int64_t{1} << 16; // elements

} // namespace tracehook::rehearsal::cuda
