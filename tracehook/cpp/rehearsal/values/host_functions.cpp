#include "rehearsal/values/host_functions.h"

#include "rehearsal/values/tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <map>

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

// mm and bmm with a type for the result that is wider than that of the factors.
Values product_of_type(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor product =
        at::matmul(wide(arguments[0].toTensor()), wide(arguments[1].toTensor()));
    return {product.to(arguments[2].toScalarType())};
}

// addmm and baddbmm.
Values sum_with_product_of_type(const Values& arguments, std::optional<at::Generator>&) {
    const at::Tensor product =
        at::matmul(wide(arguments[1].toTensor()), wide(arguments[2].toTensor()));
    const at::Tensor sum =
        wide(arguments[0].toTensor()) * arguments[4].toScalar() + product * arguments[5].toScalar();
    return {sum.to(arguments[3].toScalarType())};
}

HostFunction host_function_of(const c10::OperatorName& name) {
    static const std::map<std::string, HostFunction> functions{
        {"aten::_efficient_attention_forward", attention_of_sequences},
        {"aten::_fused_rms_norm_backward", rms_norm_backward},
        {"aten::_scaled_dot_product_efficient_attention", efficient_attention},
        {"aten::_scaled_dot_product_efficient_attention_backward", efficient_attention_backward},
        {"aten::_scaled_dot_product_flash_attention", flash_attention},
        {"aten::_scaled_dot_product_flash_attention_backward", flash_attention_backward},
        {"aten::_thnn_fused_gru_cell", gru_cell},
        {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
        {"aten::_thnn_fused_lstm_cell", lstm_cell},
        {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
        {"aten::_transform_bias_rescale_qkv", transform_for_heads},
        {"aten::addmm.dtype", sum_with_product_of_type},
        {"aten::addmm.dtype_out", sum_with_product_of_type},
        {"aten::baddbmm.dtype", sum_with_product_of_type},
        {"aten::baddbmm.dtype_out", sum_with_product_of_type},
        {"aten::batch_norm_backward_elemt", batch_norm_backward_elemt},
        {"aten::batch_norm_backward_reduce", batch_norm_backward_reduce},
        {"aten::batch_norm_elemt", batch_norm_elemt},
        {"aten::batch_norm_gather_stats_with_counts", batch_norm_gather_stats_with_counts},
        {"aten::batch_norm_stats", batch_norm_stats},
        {"aten::bmm.dtype", product_of_type},
        {"aten::bmm.dtype_out", product_of_type},
        {"aten::log_sigmoid_backward", log_sigmoid_backward},
        {"aten::mm.dtype", product_of_type},
        {"aten::mm.dtype_out", product_of_type},
        {"aten::native_batch_norm_backward", batch_norm_backward},
        {"aten::native_dropout", dropout},
        {"aten::native_layer_norm_backward", layer_norm_backward},
    };
    auto found = functions.find(name.name + "." + name.overload_name);
    if (found == functions.end()) {
        found = functions.find(name.name);
    }
    return found == functions.end() ? nullptr : found->second;
}

} // namespace tracehook::rehearsal::values
