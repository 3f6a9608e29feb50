#include "rehearsal/values/kernels.h"

#include "rehearsal/values/beneath.h"
#include "rehearsal/values/host_functions.h"
#include "rehearsal/values/limits.h"
#include "rehearsal/values/random.h"
#include "rehearsal/values/stream.h"
#include "rehearsal/values/tensors.h"
#include "rehearsal/values/uncomputed.h"
#include "rehearsal/values/unwritten.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace tracehook::rehearsal::values {
namespace {

bool is_plain(const at::Tensor& tensor) {
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Whether PyTorch's own copy only moves memory.
bool is_moved_as_memory(const at::Tensor& to, const at::Tensor& from) {
    return !is_on_device(to) || !is_on_device(from) ||
           (to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && is_plain(to) &&
            is_plain(from));
}

// Where devices reach each other's memory, PyTorch copies with one kernel that reads on one device
// and writes on another. Here each device does its part, and memory moves between them.
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

bool is_copy(const std::string& name) {
    return name == "aten::copy_" || name == "aten::_foreach_copy_";
}

void overwrite(const at::Tensor& target, const at::Tensor& from) {
    const Beneath beneath;
    at::Tensor alias = alias_of(target);
    make_ready_to_overwrite(alias);
    alias.copy_(from);
}

// Whether PyTorch's kernel gave the device a copy of memory, which is real, and no kernel.
bool moved_memory(const std::string& name, const Values& arguments) {
    return name == "aten::copy_" && is_on_device(arguments[1].toTensor()) &&
           is_moved_as_memory(arguments[0].toTensor(), arguments[1].toTensor());
}

// The results on the device, for results on the host or without memory.
c10::IValue on_device(const c10::IValue& value, at::Device device, bool copied) {
    const auto change = [&](const at::Tensor& tensor) {
        if (!tensor.defined()) {
            return tensor;
        }
        const auto dense = [&](const at::Tensor& part) {
            at::Tensor out = empty_on_device(part, device);
            if (copied) {
                overwrite(out, part);
            }
            return out;
        };
        return tensor.layout() == at::kStrided ? dense(tensor) : with_parts(tensor, dense);
    };
    return changed(value, change);
}

// Puts results in the place of the arguments on the stack. Those that are arguments stay what they
// are, and get the sizes that were computed.
void replace(const Call& call, const Values& arguments, const Values& results, at::Device device,
             bool copied) {
    torch::jit::drop(*call.stack, arguments.size());
    for (size_t index = 0; index < results.size(); ++index) {
        const c10::Argument& made = call.schema().returns()[index];
        if (!is_written(made)) {
            call.stack->push_back(on_device(results[index], device, copied));
            continue;
        }
        for (size_t at = 0; at < arguments.size(); ++at) {
            const c10::AliasInfo* const same = call.schema().arguments()[at].alias_info();
            if (same != nullptr && *same == *made.alias_info() && arguments[at].isTensor()) {
                const at::Tensor& target = arguments[at].toTensor();
                const at::Tensor& result = results[index].toTensor();
                if (target.sizes() != result.sizes()) {
                    target.resize_(result.sizes());
                }
                if (copied) {
                    overwrite(target, result);
                }
                call.stack->push_back(target);
                break;
            }
        }
    }
}

// A sparse argument that is written gets other indices and values; PyTorch does that with
// operations that are computed.
bool writes_sparse(const c10::FunctionSchema& schema, const Values& arguments) {
    for (size_t index = 0; index < arguments.size(); ++index) {
        if (is_written(schema.arguments()[index]) && arguments[index].isTensor() &&
            arguments[index].toTensor().layout() != at::kStrided) {
            return true;
        }
    }
    return false;
}

// The device of all tensors that are not on the host; none if they are on several, or if a tensor
// with elements is on the host that is more than a number.
struct Place {
    std::optional<at::Device> device;
    bool several = false;
    bool on_host = false;
    bool sparse = false;
};

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

} // namespace

void Computed::work(const Call& call) {
    const Values arguments = call.arguments();
    const std::string& name = call.schema().name();
    const Place place = place_of(arguments);
    if (place.several && most_elements() > 0 && !Within::holds() && name == "aten::copy_" &&
        !is_moved_as_memory(arguments[0].toTensor(), arguments[1].toTensor())) {
        copy_between(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toBool());
        torch::jit::drop(*call.stack, arguments.size());
        call.stack->push_back(arguments[0]);
        return;
    }
    const bool moves = is_copy(name) && (place.several || place.on_host);
    const bool is_part = Within::holds() && !how_.part_of_others;
    if (!place.device || moves || place.sparse || is_part) {
        // A copy between devices is made of memory copies, and of copies on one device. What is
        // done with sparse tensors is done with their indices and values.
        call_original(call);
        return;
    }
    std::optional<RandomPlace> random;
    if (how_.random) {
        random = random_place(arguments, *place.device);
    }
    make_results(call, arguments, *place.device);
    const Values results = call.results();
    const bool has_kernel = how_.function != nullptr ||
                            call.operation.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
    const bool compute = has_kernel && is_within_limits(arguments, results, how_.product);
    if (!compute && moved_memory(name, arguments)) {
        return;
    }
    if (!compute) {
        note_uncomputed(name, has_kernel ? "large" : "no-kernel");
    }
    give(*place.device,
         std::make_shared<Computation>(call.operation, arguments, results, how_.function, random),
         compute);
}

void Computed::make_results(const Call& call, const Values& arguments, at::Device device) const {
    if (!how_.without_original) {
        const Within within;
        call_original(call);
        return;
    }
    Values results;
    for (const c10::IValue& argument : arguments) {
        results.push_back(for_meta(argument));
    }
    {
        const Beneath beneath;
        call.operation.callBoxed(results);
    }
    replace(call, arguments, results, device, false);
}

void SizedByValues::work(const Call& call) {
    const Values arguments = call.arguments();
    const Place place = place_of(arguments);
    if (!place.device || writes_sparse(call.schema(), arguments)) {
        call_original(call);
        return;
    }
    TORCH_CHECK(
        is_within_limits(arguments, {}, false), "rehearsal: the size of what ",
        call.schema().name(),
        " returns depends on values, and this rehearsal computes values of tensors of up to ",
        most_elements(), " elements: raise --values of tracehook rehearse, or keep this ",
        "step out of the rehearsal");
    wait_for_stream(*place.device);
    Values results;
    for (size_t index = 0; index < arguments.size(); ++index) {
        results.push_back(for_host(arguments[index]));
        make_ready(results.back());
        if (is_written(call.schema().arguments()[index]) && arguments[index].isTensor()) {
            // The kernel gives it the size that it finds.
            results.back() = results.back().toTensor().clone();
        }
    }
    {
        const Beneath beneath;
        call.operation.callBoxed(results);
    }
    replace(call, arguments, results, *place.device, true);
}

void Empty::work(const Call& call) {
    call_original(call);
    const at::Tensor made = call.stack->back().toTensor();
    if (Within::holds() || !is_on_device(made) || made.numel() == 0 || made.is_quantized() ||
        is_capturing(made.device())) {
        return;
    }
    enqueue(made.device(), [alias = alias_of(made)] {
        const Beneath beneath;
        poison_new(alias);
    });
}

void MadeOfOthers::work(const Call& call) {
    const Values arguments = call.arguments();
    {
        const Launches launches;
        call_original(call);
        if (!launches.any()) {
            return;
        }
    }
    const Values results = call.results();
    Place place = place_of(arguments);
    if (!place.device) {
        place = place_of(results);
    }
    // An argument that is written may be half written by now.
    const HostFunction function = host_function_of(call.operation.operator_name());
    const bool has_kernel =
        (function != nullptr || call.operation.hasComputedKernelForDispatchKey(host_)) &&
        std::ranges::none_of(call.schema().arguments(), is_written);
    const bool compute = has_kernel && is_within_limits(arguments, results, true);
    if (!compute) {
        note_uncomputed(call.schema().name(), has_kernel ? "large" : "no-kernel");
    }
    if (place.device) {
        give(*place.device,
             std::make_shared<Computation>(call.operation, arguments, results, function,
                                           std::nullopt),
             compute);
    }
}

} // namespace tracehook::rehearsal::values
