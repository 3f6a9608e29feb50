// What kernels of a rehearsal ask of the arguments and results of an operation.
//
// Any thread, nothing held.
#pragma once

#include "rehearsal/values/computation.h"

#include <ATen/core/stack.h>

#include <optional>

namespace tracehook::rehearsal::values {

// The last values on the stack.
Values last(const torch::jit::Stack& stack, size_t count);

// The device of all tensors that are not on the host; none if they are on several, or if a tensor
// with elements is on the host that is more than a number.
struct Place {
    std::optional<at::Device> device;
    bool several = false;
    bool on_host = false;
    bool sparse = false;
};

Place place_of(const Values& arguments);

} // namespace tracehook::rehearsal::values
