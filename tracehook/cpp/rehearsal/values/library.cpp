// The library of computed values: loaded into a process of a rehearsal after torch.
#include "rehearsal/values/host_functions.h"
#include "rehearsal/values/kernels.h"
#include "rehearsal/values/limits.h"
#include "rehearsal/values/names.h"
#include "rehearsal/values/uncomputed.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <regex>
#include <string>

namespace tracehook::rehearsal::values {
namespace {

// Operations that every device has, and that are computed whole.
constexpr std::array kForEveryDevice{"aten::copy_", "aten::convolution", "aten::linalg_lstsq"};

// Its CPU kernel writes beyond results that it is given. PyTorch calls it for linalg_lstsq, which
// is computed whole.
constexpr const char* kRefusesAliases = "linalg_lstsq.out";

class Silent : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
};

std::string without_namespace(const std::string& name) {
    return name.substr(name.find("::") + 2);
}

std::string target_of(const c10::OperatorName& name) {
    const std::string plain = without_namespace(name.name);
    return name.overload_name.empty() ? plain : plain + "." + name.overload_name;
}

// Leaked: its end would take the kernels away while threads still compute.
torch::Library& new_library(c10::DispatchKey key, const char* space = "aten") {
    return *new torch::Library(torch::Library::IMPL, space, key, __FILE__, __LINE__);
}

void put(torch::Library& library, const c10::OperatorName& name,
         std::unique_ptr<DeviceKernel> kernel) {
    library.impl(target_of(name).c_str(),
                 torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
}

// The kernel that takes the place of an operation's; null if it stays.
std::unique_ptr<DeviceKernel> kernel_for(const c10::OperatorHandle& operation) {
    const std::string name = without_namespace(operation.operator_name().name);
    const bool computes = most_elements() > 0;
    c10::SafeKernelFunction original =
        operation.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA);
    if (name == "empty" || name == "empty_strided") {
        return computes ? std::make_unique<Empty>(std::move(original)) : nullptr;
    }
    if (std::regex_match(name, sized_by_values)) {
        return std::make_unique<SizedByValues>(std::move(original));
    }
    Computed::How how;
    how.without_original = std::regex_match(name, without_original);
    how.product = std::regex_match(name, products);
    how.part_of_others = std::regex_match(name, part_of_others);
    how.random = operation.hasTag(at::Tag::nondeterministic_seeded);
    how.function = host_function_of(operation.operator_name());
    return computes || how.without_original ? std::make_unique<Computed>(std::move(original), how)
                                            : nullptr;
}

void put(torch::Library& library, const c10::OperatorHandle& operation) {
    if (std::unique_ptr<DeviceKernel> kernel = kernel_for(operation)) {
        put(library, operation.operator_name(), std::move(kernel));
    }
}

// Also where it makes no tensor at all.
bool makes_views(const c10::OperatorHandle& operation) {
    const std::vector<c10::Argument>& returns = operation.schema().returns();
    return std::ranges::none_of(returns, [](const c10::Argument& made) {
        return made.type()->isSubtypeOf(*c10::TensorType::get()) &&
               (made.alias_info() == nullptr || is_written(made));
    });
}

void put_sparse(torch::Library& library, c10::DispatchKey key) {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(key)) {
        if (std::regex_match(without_namespace(name.name), for_sparse)) {
            put(library, name,
                std::make_unique<SizedByValues>(
                    dispatcher.findOp(name)->getComputedKernelForDispatchKey(key)));
        }
    }
}

void put_made_of_others(torch::Library& library, const c10::OperatorHandle& operation,
                        c10::DispatchKey key, c10::DispatchKey host) {
    put(library, operation.operator_name(),
        std::make_unique<MadeOfOthers>(operation.getComputedKernelForDispatchKey(key), host));
}

bool is_sparse(c10::DispatchKey key) {
    return key == c10::DispatchKey::SparseCUDA || key == c10::DispatchKey::SparseCsrCUDA;
}

// What tensors of these kinds can do is made of operations on their parts, and of kernels.
void put_made_of_others(c10::DispatchKey key, c10::DispatchKey host, const char* space) {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    torch::Library& library = new_library(key, space);
    for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(key)) {
        const std::optional<c10::OperatorHandle> operation = dispatcher.findOp(name);
        if (name.name.starts_with(std::string(space) + "::") && operation &&
            operation->hasSchema() && !makes_views(*operation) &&
            !(is_sparse(key) && (std::regex_match(without_namespace(name.name), for_sparse) ||
                                 std::regex_match(without_namespace(name.name), left_alone)))) {
            put_made_of_others(library, *operation, key, host);
        }
    }
}

int begin() {
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    at::globalContext().setUserEnabledCuDNN(false);
    torch::Library& library = new_library(c10::DispatchKey::CUDA);
    torch::Library& symmetric = new_library(c10::DispatchKey::CUDA, "symm_mem");
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    int count = 0;
    const auto replace = [&](const c10::OperatorName& name) {
        const std::optional<c10::OperatorHandle> operation = dispatcher.findOp(name);
        if (operation && operation->hasSchema() &&
            !std::regex_match(without_namespace(name.name), left_alone) &&
            target_of(name) != kRefusesAliases) {
            put(library, *operation);
            ++count;
        }
    };
    for (const c10::OperatorName& name :
         dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
        if (name.name.starts_with("aten::")) {
            replace(name);
        } else if (name.name.starts_with("symm_mem::") && most_elements() > 0 &&
                   std::regex_match(without_namespace(name.name), between_ranks)) {
            put(symmetric, *dispatcher.findOp(name));
        }
    }
    for (const char* name : kForEveryDevice) {
        replace({name, ""});
    }
    for (const c10::DispatchKey key :
         {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCsrCUDA}) {
        put_sparse(new_library(key), key);
    }
    if (most_elements() > 0) {
        using Key = c10::DispatchKey;
        for (const c10::OperatorName& name :
             dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
            if (std::regex_match(name.name, makes_other_kinds)) {
                put_made_of_others(library, *dispatcher.findOp(name), Key::CUDA, Key::CPU);
            }
        }
        put_made_of_others(Key::NestedTensorCUDA, Key::NestedTensorCPU, "aten");
        put_made_of_others(Key::SparseCUDA, Key::SparseCPU, "aten");
        put_made_of_others(Key::SparseCsrCUDA, Key::SparseCsrCPU, "aten");
        put_made_of_others(Key::QuantizedCUDA, Key::QuantizedCPU, "aten");
        put_made_of_others(Key::QuantizedCUDA, Key::QuantizedCPU, "quantized");
        put_made_of_others(Key::CUDA, Key::CPU, "quantized");
        put_made_of_others(Key::CUDA, Key::CPU, "quantization");
        follow_launches();
    }
    return count;
}

} // namespace
} // namespace tracehook::rehearsal::values

// Replaces PyTorch's CUDA kernels. Once in a process, by a thread that calls nothing of PyTorch
// meanwhile, while no other thread does. Returns how many there are, or -1 with one line in
// `error`.
extern "C" __attribute__((visibility("default"))) int
tracehook_compute_values(char* error, unsigned error_size) noexcept {
    try {
        static const int count = tracehook::rehearsal::values::begin();
        return count;
    } catch (const std::exception& problem) {
        std::snprintf(error, error_size, "%s", problem.what());
        return -1;
    }
}
