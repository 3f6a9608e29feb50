// What stands in memory that nobody computed: NaN in floating point, zero in all else. And what the
// host does before it touches memory of a device, in which not all of that may have been written
// yet (rehearsal/cuda/unwritten.h).
//
// On the thread that computes, in the order of the stream. The tensors are those of the host; what
// is to be poisoned is an alias (tensors.h), and what is no alias of device memory is left alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tracehook::rehearsal::values {

// False: there is no such memory, and what follows has nothing to do.
bool any_unwritten();

// Before somebody reads a tensor, or writes parts of it.
void make_ready(const at::Tensor& alias);

// Before somebody writes all of it.
void make_ready_to_overwrite(const at::Tensor& alias);

// The same for all tensors of an argument.
void make_ready(const c10::IValue& argument);

// Of a result. Writes to all of a tensor that could have been computed, since that would have taken
// its memory too; of a larger one to its first and last page. What lies between them reads so too
// (rehearsal/cuda/unwritten.h), unless another process can write there.
void poison(const at::Tensor& alias);

// Of memory that nobody has written yet, which may be much: of more than 2^20 elements only the
// first and the last page. Integers where another process may have written already stay.
void poison_new(const at::Tensor& alias);

} // namespace tracehook::rehearsal::values
