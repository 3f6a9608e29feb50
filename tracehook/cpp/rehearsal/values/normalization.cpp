#include "rehearsal/values/host_functions.h"
#include "rehearsal/values/tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>

#include <array>
#include <numeric>

namespace tracehook::rehearsal::values {
namespace {

at::Tensor optional_wide(const c10::IValue& value) {
    const bool is_given = value.isTensor() && value.toTensor().defined();
    return is_given ? wide(value.toTensor()) : at::Tensor();
}

// The channels are the second dimension.
std::vector<int64_t> all_but_channels(const at::Tensor& tensor) {
    std::vector<int64_t> dimensions{0};
    for (int64_t dimension = 2; dimension < tensor.dim(); ++dimension) {
        dimensions.push_back(dimension);
    }
    return dimensions;
}

at::Tensor by_channel(const at::Tensor& values, const at::Tensor& like) {
    std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
    sizes[1] = -1;
    return values.reshape(sizes);
}

std::array<bool, 3> three_flags(const c10::IValue& value) {
    const c10::List<bool> flags = value.toBoolList();
    return {flags[0], flags[1], flags[2]};
}

} // namespace

// Beside a bfloat16 input the host's kernels want bfloat16 statistics, and a device has float ones.
Values layer_norm_backward(const Values& arguments, std::optional<at::Generator>&) {
    const auto [input, weight, bias] = at::native_layer_norm_backward(
        wide(arguments[0].toTensor()), wide(arguments[1].toTensor()), arguments[2].toIntVector(),
        wide(arguments[3].toTensor()), wide(arguments[4].toTensor()), optional_wide(arguments[5]),
        optional_wide(arguments[6]), three_flags(arguments[7]));
    return {input, weight, bias};
}

Values batch_norm_backward(const Values& arguments, std::optional<at::Generator>&) {
    const auto [input, weight, bias] = at::native_batch_norm_backward(
        wide(arguments[0].toTensor()), wide(arguments[1].toTensor()), optional_wide(arguments[2]),
        optional_wide(arguments[3]), optional_wide(arguments[4]), optional_wide(arguments[5]),
        optional_wide(arguments[6]), arguments[7].toBool(), arguments[8].toDouble(),
        three_flags(arguments[9]));
    return {input, weight, bias};
}

Values rms_norm_backward(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor gradient = wide(arguments[0].toTensor());
    const at::Tensor input = wide(arguments[1].toTensor());
    const auto normalized = static_cast<int64_t>(arguments[2].toIntVector().size());
    const at::Tensor rstd = arguments[3].toTensor();
    const at::Tensor weight = optional_wide(arguments[4]);
    std::vector<int64_t> inner(static_cast<size_t>(normalized));
    std::iota(inner.begin(), inner.end(), -normalized);
    std::vector<int64_t> outer(static_cast<size_t>(input.dim() - normalized));
    std::iota(outer.begin(), outer.end(), 0);
    const at::Tensor toward = weight.defined() ? gradient * weight : gradient;
    const at::Tensor normal = input * rstd;
    const at::Tensor input_gradient =
        (toward - normal * (toward * normal).mean(inner, true)) * rstd;
    at::Tensor weight_gradient;
    if (weight.defined()) {
        weight_gradient = outer.empty() ? gradient * normal : (gradient * normal).sum(outer);
    }
    return {input_gradient, weight_gradient};
}

Values batch_norm_stats(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor input = wide(arguments[0].toTensor());
    const auto [variance, mean] =
        at::var_mean(input, at::OptionalIntArrayRef(all_but_channels(input)), 0);
    return {mean, at::rsqrt(variance + arguments[1].toDouble())};
}

Values batch_norm_elemt(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor input = wide(arguments[0].toTensor());
    const at::Tensor weight = optional_wide(arguments[1]);
    const at::Tensor bias = optional_wide(arguments[2]);
    at::Tensor out = (input - by_channel(arguments[3].toTensor(), input)) *
                     by_channel(arguments[4].toTensor(), input);
    out = weight.defined() ? out * by_channel(weight, input) : out;
    return {bias.defined() ? out + by_channel(bias, input) : out};
}

Values batch_norm_gather_stats_with_counts(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor means = arguments[1].toTensor();
    const double epsilon = arguments[6].toDouble();
    const double momentum = arguments[5].toDouble();
    const at::Tensor counts = wide(arguments[7].toTensor()).reshape({-1, 1});
    const at::Tensor count = counts.sum();
    const at::Tensor mean = (means * counts).sum(0) / count;
    const at::Tensor variances = arguments[2].toTensor().pow(-2) - epsilon;
    const at::Tensor variance = ((variances + (means - mean).square()) * counts).sum(0) / count;
    const auto follow = [&](const c10::IValue& running, const at::Tensor& now) {
        if (running.isTensor() && running.toTensor().defined()) {
            at::Tensor kept = running.toTensor();
            kept.mul_(1 - momentum).add_(now.to(kept.scalar_type()), momentum);
        }
    };
    follow(arguments[3], mean);
    follow(arguments[4], variance * count / (count - 1));
    return {mean, at::rsqrt(variance + epsilon)};
}

Values batch_norm_backward_reduce(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor gradient = wide(arguments[0].toTensor());
    const at::Tensor input = wide(arguments[1].toTensor());
    const std::vector<int64_t> dimensions = all_but_channels(input);
    const at::Tensor sum = gradient.sum(dimensions);
    const at::Tensor centred = input - by_channel(arguments[2].toTensor(), input);
    const at::Tensor moment = (gradient * centred).sum(dimensions);
    return {sum, moment, moment * arguments[3].toTensor(), sum};
}

Values batch_norm_backward_elemt(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor gradient = wide(arguments[0].toTensor());
    const at::Tensor input = wide(arguments[1].toTensor());
    const at::Tensor invstd = by_channel(arguments[3].toTensor(), input);
    const at::Tensor weight = optional_wide(arguments[4]);
    const at::Tensor count = wide(arguments[7].toTensor()).sum();
    const at::Tensor centred = input - by_channel(arguments[2].toTensor(), input);
    const at::Tensor sum = by_channel(arguments[5].toTensor(), input) / count;
    const at::Tensor moment = by_channel(arguments[6].toTensor(), input) / count;
    const at::Tensor out = (gradient - sum - centred * invstd.square() * moment) * invstd;
    return {weight.defined() ? out * by_channel(weight, input) : out};
}

} // namespace tracehook::rehearsal::values
