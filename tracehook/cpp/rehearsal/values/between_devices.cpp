#include "rehearsal/values/between_devices.h"

#include "rehearsal/values/tensors.h"

#include <ATen/ops/empty.h>

namespace tracehook::rehearsal::values {
namespace {

bool is_plain(const at::Tensor& tensor) {
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

} // namespace

bool is_moved_as_memory(const at::Tensor& to, const at::Tensor& from) {
    return !is_on_device(to) || !is_on_device(from) ||
           (to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && is_plain(to) &&
            is_plain(from));
}

void copy_between(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    at::Tensor ready = at::empty(to.sizes(), from.options().dtype(to.scalar_type()));
    ready.copy_(from);
    if (is_plain(to)) {
        at::Tensor target = to;
        target.copy_(ready, non_blocking);
        return;
    }
    at::Tensor moved = at::empty(to.sizes(), to.options());
    moved.copy_(ready, non_blocking);
    at::Tensor target = to;
    target.copy_(moved);
}

} // namespace tracehook::rehearsal::values
