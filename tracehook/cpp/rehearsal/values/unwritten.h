// What the host does before it touches memory of a device, in which not all that reads as NaN or
// zero may have been written yet (rehearsal/cuda/unwritten.h).
//
// On the thread that computes, in the order of the stream. The tensors are those of the host, and
// what is not an alias of device memory is left alone.
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

} // namespace tracehook::rehearsal::values
