#include "rehearsal/values/host_functions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

namespace tracehook::rehearsal::values {

// The device keeps no notes for the backward pass, which the host's kernel wants.
Values log_sigmoid_backward(const Values& arguments, std::optional<at::Generator>&) {
    return {arguments[0].toTensor() * (1 - arguments[1].toTensor().sigmoid())};
}

// Not the CPU's kernel: that takes the numbers of the program's own generator of the host.
Values dropout(const Values& arguments, std::optional<at::Generator>& generator) {
    const at::Tensor input = arguments[0].toTensor();
    const double dropped = arguments[1].toDouble();
    const bool trains = arguments[2].isNone() || arguments[2].toBool();
    if (!trains) {
        return {input, at::ones_like(input, at::TensorOptions(at::kBool))};
    }
    at::Tensor mask = at::empty_like(input, at::TensorOptions(at::kBool));
    mask.bernoulli_(1 - dropped, generator);
    const double scale = dropped < 1 ? 1 / (1 - dropped) : 0;
    return {input * mask * scale, mask};
}

} // namespace tracehook::rehearsal::values
