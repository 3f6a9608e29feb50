#include "rehearsal/values/tensors.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/ops/_nested_view_from_buffer.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/quantized/Quantizer.h>

namespace tracehook::rehearsal::values {
namespace {

c10::IValue for_device(const c10::IValue& value, const Change& change, at::DeviceType device) {
    if (value.isDevice()) {
        return at::Device(device);
    }
    return value.isGenerator() ? c10::IValue() : changed(value, change);
}

// Those of jagged layout are made of tensors in Python, and never come here whole.
bool is_nested(const at::Tensor& tensor) {
    return tensor.is_nested() && tensor.layout() == at::kStrided &&
           !tensor.key_set().has(c10::DispatchKey::Python);
}

bool is_by_rows(const at::Tensor& tensor) {
    return tensor.layout() == at::kSparseCsr || tensor.layout() == at::kSparseBsr;
}

at::Tensor host_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
        return tensor;
    }
    if (is_on_device(tensor)) {
        return alias_of(tensor);
    }
    if (tensor.is_cuda()) {
        return with_parts(tensor, alias_of);
    }
    // The program may change it before the stream comes to this operation.
    at::Tensor copy = tensor.detach().clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return copy;
}

at::Tensor alias_of_quantized(const at::Tensor& tensor) {
    const at::TensorOptions options = at::TensorOptions(tensor.scalar_type()).device(at::kCPU);
    const auto keep = [](void*) {};
    void* const data = tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr();
    if (tensor.qscheme() == at::kPerTensorAffine) {
        return at::from_blob_quantized_per_tensor_affine(data, tensor.sizes(), tensor.strides(),
                                                         keep, static_cast<float>(tensor.q_scale()),
                                                         tensor.q_zero_point(), options);
    }
    TORCH_CHECK(tensor.is_contiguous(), "a quantized tensor that is not contiguous");
    return at::from_blob_quantized_per_channel_affine(
        data, tensor.sizes(), keep, alias_of(tensor.q_per_channel_scales()),
        alias_of(tensor.q_per_channel_zero_points()), tensor.q_per_channel_axis(), options);
}

at::Tensor meta_tensor(const at::Tensor& tensor) {
    if (!tensor.defined() || !is_on_device(tensor)) {
        return tensor;
    }
    at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                        tensor.options().device(at::kMeta).pinned_memory(false));
    meta._set_conj(tensor.is_conj());
    meta._set_neg(tensor.is_neg());
    return meta;
}

} // namespace

int64_t elements_of(const at::Tensor& tensor) {
    if (tensor.layout() == at::kStrided) {
        return tensor.numel();
    }
    return tensor.is_sparse() ? tensor._values().numel() : tensor.values().numel();
}

c10::IValue changed(const c10::IValue& value, const Change& change) {
    if (value.isTensor()) {
        return change(value.toTensor());
    }
    if (value.isTensorList()) {
        c10::List<at::Tensor> out;
        for (const at::Tensor& tensor : value.toTensorVector()) {
            out.push_back(change(tensor));
        }
        return out;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> out;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
            out.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
        }
        return out;
    }
    return value;
}

at::Tensor with_parts(const at::Tensor& sparse, const Change& change) {
    if (sparse.is_sparse()) {
        const at::Tensor values = change(sparse._values());
        return at::_sparse_coo_tensor_unsafe(change(sparse._indices()), values, sparse.sizes(),
                                             values.options().layout(at::kSparse),
                                             sparse.is_coalesced());
    }
    const bool by_rows = is_by_rows(sparse);
    const at::Tensor values = change(sparse.values());
    return at::_sparse_compressed_tensor_unsafe(
        change(by_rows ? sparse.crow_indices() : sparse.ccol_indices()),
        change(by_rows ? sparse.col_indices() : sparse.row_indices()), values, sparse.sizes(),
        values.options().layout(sparse.layout()));
}

bool is_on_device(const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cuda() && tensor.layout() == at::kStrided;
}

std::vector<at::Tensor> parts_of(const at::Tensor& tensor) {
    if (!tensor.defined() || (tensor.layout() == at::kStrided && !is_nested(tensor))) {
        return {tensor};
    }
    if (is_nested(tensor)) {
        return {at::native::get_nested_tensor_impl(tensor)->get_unsafe_storage_as_tensor()};
    }
    if (tensor.is_sparse()) {
        return {tensor._indices(), tensor._values()};
    }
    const bool by_rows = is_by_rows(tensor);
    return {by_rows ? tensor.crow_indices() : tensor.ccol_indices(),
            by_rows ? tensor.col_indices() : tensor.row_indices(), tensor.values()};
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
    std::vector<at::Tensor> out;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
        for (const at::Tensor& part : parts_of(tensor)) {
            out.push_back(part);
        }
    });
    return out;
}

at::Tensor alias_of(const at::Tensor& tensor) {
    if (is_nested(tensor)) {
        const auto* const nested = at::native::get_nested_tensor_impl(tensor);
        return at::_nested_view_from_buffer(
            alias_of(nested->get_unsafe_storage_as_tensor()), nested->get_nested_sizes(),
            nested->get_nested_strides(), nested->get_storage_offsets());
    }
    if (tensor.is_quantized()) {
        return alias_of_quantized(tensor);
    }
    const at::TensorOptions options = at::TensorOptions(tensor.scalar_type()).device(at::kCPU);
    void* const data = tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr();
    at::Tensor alias;
    if (tensor.numel() != 0 && data == nullptr) {
        // PyTorch has zeros without memory for gradients.
        alias = at::zeros(tensor.sizes(), options);
    } else {
        alias = at::from_blob(data, tensor.sizes(), tensor.strides(), options);
    }
    alias._set_conj(tensor.is_conj());
    alias._set_neg(tensor.is_neg());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        alias.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return alias;
}

c10::IValue for_host(const c10::IValue& value) {
    return for_device(value, host_tensor, at::kCPU);
}

c10::IValue for_meta(const c10::IValue& value) {
    return for_device(value, meta_tensor, at::kMeta);
}

at::Tensor empty_on_device(const at::Tensor& like, at::Device device) {
    return at::empty_strided(like.sizes(), like.strides(),
                             at::TensorOptions(like.scalar_type()).device(device));
}

at::Tensor wide(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

} // namespace tracehook::rehearsal::values
