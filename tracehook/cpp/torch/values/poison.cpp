#include "torch/values/poison.h"

#include "torch/values/limits.h"

#include <ATen/ops/fill.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace tracehook::values {
namespace {

constexpr int64_t kEdge = 1024; // elements
constexpr int64_t kMostNew = int64_t{1} << 20;

void fill(const at::Tensor& alias) {
    at::Tensor plain = alias;
    if (c10::isFloatingType(alias.scalar_type()) || c10::isComplexType(alias.scalar_type())) {
        plain.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
        plain.zero_();
    }
}

void poison_up_to(int64_t most, const at::Tensor& alias) {
    const int64_t count = alias.numel();
    if (count == 0) {
        return;
    }
    if (alias.is_quantized()) {
        std::memset(alias.mutable_data_ptr(), 0, alias.nbytes());
        return;
    }
    if (count <= std::max(2 * kEdge, most) || !alias.is_non_overlapping_and_dense()) {
        fill(alias);
        return;
    }
    const int64_t first = alias.storage_offset();
    fill(alias.as_strided({kEdge}, {1}, first));
    fill(alias.as_strided({kEdge}, {1}, first + count - kEdge));
}

} // namespace

void poison(const at::Tensor& alias) {
    const int64_t most = most_elements();
    poison_up_to(memory_is_short() ? std::min(kMostNew, most) : most, alias);
}

void poison_new(const at::Tensor& alias) {
    poison_up_to(std::min(kMostNew, most_elements()), alias);
}

} // namespace tracehook::values
