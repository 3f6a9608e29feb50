// Copies from one device to another.
//
// A thread that gives work to the current streams of both.
#pragma once

#include <ATen/core/Tensor.h>

namespace tracehook::rehearsal::values {

// Whether PyTorch's own copy only moves memory.
bool is_moved_as_memory(const at::Tensor& to, const at::Tensor& from);

// Where devices reach each other's memory, PyTorch copies with one kernel that reads on one device
// and writes on another. Here each device does its part, and memory moves between them.
void copy_between(const at::Tensor& to, const at::Tensor& from, bool non_blocking);

} // namespace tracehook::rehearsal::values
