#include "rehearsal/values/host_functions.h"
#include "rehearsal/values/tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

namespace tracehook::rehearsal::values {

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

} // namespace tracehook::rehearsal::values
