#include "rehearsal/values/operands.h"

#include "rehearsal/values/tensors.h"

#include <c10/core/DeviceGuard.h>

namespace tracehook::rehearsal::values {

Values last(const torch::jit::Stack& stack, size_t count) {
    return {stack.end() - static_cast<std::ptrdiff_t>(count), stack.end()};
}

Place place_of(const Values& arguments) {
    Place place;
    for (const c10::IValue& argument : arguments) {
        if (argument.isDevice() && argument.toDevice().is_cuda() && !place.device) {
            place.device = argument.toDevice();
        }
        for_each_tensor(argument, [&](const at::Tensor& tensor) {
            if (!tensor.defined()) {
                return;
            }
            place.sparse = place.sparse || tensor.layout() != at::kStrided;
            if (!tensor.is_cuda()) {
                place.on_host = place.on_host || tensor.dim() > 0;
            } else if (place.device && place.device->has_index() &&
                       *place.device != tensor.device()) {
                place.several = true;
            } else {
                place.device = tensor.device();
            }
        });
    }
    if (place.device && !place.device->has_index()) {
        place.device = c10::impl::VirtualGuardImpl(place.device->type()).getDevice();
    }
    return place;
}

} // namespace tracehook::rehearsal::values
