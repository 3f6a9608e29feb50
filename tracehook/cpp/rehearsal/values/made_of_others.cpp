#include "rehearsal/values/host_functions.h"
#include "rehearsal/values/kernels.h"
#include "rehearsal/values/limits.h"
#include "rehearsal/values/uncomputed.h"

#include <algorithm>
#include <memory>

namespace tracehook::rehearsal::values {
namespace {

bool writes_arguments(const c10::OperatorHandle& operation) {
    const std::vector<c10::Argument>& arguments = operation.schema().arguments();
    return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
        return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    });
}

} // namespace

void MadeOfOthers::operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                              torch::jit::Stack* stack) {
    const Values arguments = last(*stack, operation.schema().arguments().size());
    {
        const Launches launches;
        call_original(operation, keys, stack);
        if (!launches.any()) {
            return;
        }
    }
    const Values results = last(*stack, operation.schema().returns().size());
    const std::string& name = operation.schema().name();
    Place place = place_of(arguments);
    if (!place.device) {
        place = place_of(results);
    }
    // An argument that is written may be half written by now.
    const HostFunction function = host_function_of(operation.operator_name());
    const bool has_kernel =
        (function != nullptr || operation.hasComputedKernelForDispatchKey(host_)) &&
        !writes_arguments(operation);
    const bool compute = has_kernel && is_within_limits(arguments, results, true);
    if (!compute) {
        note_uncomputed(name, has_kernel ? "large" : "no-kernel");
    }
    if (place.device) {
        give(*place.device,
             std::make_shared<Computation>(operation, arguments, results, function, std::nullopt),
             compute);
    }
}

} // namespace tracehook::rehearsal::values
