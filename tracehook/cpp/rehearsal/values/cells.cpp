#include "rehearsal/values/host_functions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

namespace tracehook::rehearsal::values {
namespace {

at::Tensor with_bias(const at::Tensor& gates, const c10::IValue& bias) {
    const bool is_given = bias.isTensor() && bias.toTensor().defined();
    return is_given ? gates + bias.toTensor() : gates;
}

at::Tensor or_zeros(const c10::IValue& value, const at::Tensor& like) {
    const bool is_given = value.isTensor() && value.toTensor().defined();
    return is_given ? value.toTensor() : like.new_zeros(like.sizes());
}

at::Tensor slope_of_sigmoid(const at::Tensor& output) {
    return output * (1 - output);
}

at::Tensor slope_of_tanh(const at::Tensor& output) {
    return 1 - output * output;
}

} // namespace

// The workspace keeps the four gates, in the order of the weights: input, forget, cell, output.
Values lstm_cell(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor sums = with_bias(arguments[0].toTensor(), arguments[3]) +
                            with_bias(arguments[1].toTensor(), arguments[4]);
    const std::vector<at::Tensor> parts = sums.chunk(4, 1);
    const at::Tensor in = parts[0].sigmoid();
    const at::Tensor forget = parts[1].sigmoid();
    const at::Tensor cell = parts[2].tanh();
    const at::Tensor out = parts[3].sigmoid();
    const at::Tensor state = forget * arguments[2].toTensor() + in * cell;
    return {out * state.tanh(), state, at::cat({in, forget, cell, out}, 1)};
}

Values lstm_cell_backward(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor before = arguments[2].toTensor();
    const at::Tensor state = arguments[3].toTensor();
    const std::vector<at::Tensor> gates = arguments[4].toTensor().chunk(4, 1);
    const at::Tensor hidden_gradient = or_zeros(arguments[0], state);
    const at::Tensor shown = state.tanh();
    const at::Tensor state_gradient =
        or_zeros(arguments[1], state) + hidden_gradient * gates[3] * slope_of_tanh(shown);
    const at::Tensor gradient = at::cat({state_gradient * gates[2] * slope_of_sigmoid(gates[0]),
                                         state_gradient * before * slope_of_sigmoid(gates[1]),
                                         state_gradient * gates[0] * slope_of_tanh(gates[2]),
                                         hidden_gradient * shown * slope_of_sigmoid(gates[3])},
                                        1);
    const at::Tensor bias = arguments[5].toBool() ? gradient.sum(0) : at::Tensor();
    return {gradient, state_gradient * gates[1], bias};
}

// The workspace keeps: reset, update, new, the state before, and the hidden part of new.
Values gru_cell(const Values& arguments, std::optional<at::Generator>&) {
    const std::vector<at::Tensor> input =
        with_bias(arguments[0].toTensor(), arguments[3]).chunk(3, 1);
    const std::vector<at::Tensor> hidden =
        with_bias(arguments[1].toTensor(), arguments[4]).chunk(3, 1);
    const at::Tensor before = arguments[2].toTensor();
    const at::Tensor reset = (input[0] + hidden[0]).sigmoid();
    const at::Tensor update = (input[1] + hidden[1]).sigmoid();
    const at::Tensor fresh = (input[2] + reset * hidden[2]).tanh();
    return {fresh + update * (before - fresh),
            at::cat({reset, update, fresh, before, hidden[2]}, 1)};
}

Values gru_cell_backward(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor gradient = arguments[0].toTensor();
    const std::vector<at::Tensor> kept = arguments[1].toTensor().chunk(5, 1);
    const at::Tensor fresh = gradient * (1 - kept[1]) * slope_of_tanh(kept[2]);
    const at::Tensor update = gradient * (kept[3] - kept[2]) * slope_of_sigmoid(kept[1]);
    const at::Tensor reset = fresh * kept[4] * slope_of_sigmoid(kept[0]);
    const at::Tensor input = at::cat({reset, update, fresh}, 1);
    const at::Tensor hidden = at::cat({reset, update, fresh * kept[0]}, 1);
    const bool has_bias = arguments[2].toBool();
    return {input, hidden, gradient * kept[1], has_bias ? input.sum(0) : at::Tensor(),
            has_bias ? hidden.sum(0) : at::Tensor()};
}

} // namespace tracehook::rehearsal::values
