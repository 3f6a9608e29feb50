// What stands in memory that nobody computed: NaN in floating point, zero in all else.
//
// Any thread, nothing held. The tensors are aliases (tensors.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace tracehook::rehearsal::values {

// Of a result. Writes to all of a tensor that could have been computed, since that would have taken
// its memory too; of a larger one to its first and last page. What lies between them reads so too
// (rehearsal/cuda/unwritten.h), unless another process can write there.
void poison(const at::Tensor& alias);

// Of memory that nobody has written yet, which may be much: of more than 2^20 elements only the
// first and the last page. Integers where another process may have written already stay.
void poison_new(const at::Tensor& alias);

} // namespace tracehook::rehearsal::values
