// Tensors of emulated devices as the host sees them: their memory is memory of this process.
//
// Any thread, nothing held. An alias does not keep the memory alive, as a kernel does not.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tracehook::rehearsal::values {

using Change = std::function<at::Tensor(const at::Tensor&)>;

// The elements that lie in memory: of a sparse tensor, those of its values.
int64_t elements_of(const at::Tensor& tensor);

bool is_on_device(const at::Tensor& tensor);

// A CPU tensor on the memory of a dense device tensor, also of a nested or a quantized one, with
// its strides, its conjugate and negative bits, and its part in the promotion of types.
at::Tensor alias_of(const at::Tensor& tensor);

// The tensors in which a tensor keeps its elements: itself, or the parts of a sparse tensor, or the
// memory of a nested one.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor);

// The same for all tensors of an argument or a result.
std::vector<at::Tensor> tensors_of(const c10::IValue& value);

// A sparse tensor whose indices and values are `change` of those of another one.
at::Tensor with_parts(const at::Tensor& sparse, const Change& change);

// An argument or a result with `change` of each tensor in it.
c10::IValue changed(const c10::IValue& value, const Change& change);

// An argument of an operation for its CPU kernel: device tensors become aliases, or sparse tensors
// of aliases, tensors of the host copies, the device becomes the CPU, and generators are left out.
c10::IValue for_host(const c10::IValue& value);

// The same without memory: for a function that only says of which sizes the results are.
c10::IValue for_meta(const c10::IValue& value);

// A new tensor of the current device with the sizes, strides and type of `like`, not written.
at::Tensor empty_on_device(const at::Tensor& like, at::Device device);

// In float, or in double if it is that already.
at::Tensor wide(const at::Tensor& tensor);

// Calls `visit` for each tensor in an argument or a result.
template <typename Visit> void for_each_tensor(const c10::IValue& value, Visit&& visit) {
    if (value.isTensor()) {
        visit(value.toTensor());
    } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
            visit(tensor);
        }
    } else if (value.isList()) {
        for (const c10::IValue& item : value.toListRef()) {
            if (item.isTensor()) {
                visit(item.toTensor());
            }
        }
    }
}

} // namespace tracehook::rehearsal::values
