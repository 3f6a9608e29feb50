#include "rehearsal/values/computation.h"

#include "rehearsal/cuda/device.h"
#include "rehearsal/values/beneath.h"
#include "rehearsal/values/names.h"
#include "rehearsal/values/stream.h"
#include "rehearsal/values/tensors.h"
#include "rehearsal/values/uncomputed.h"
#include "rehearsal/values/unwritten.h"

namespace tracehook::rehearsal::values {
namespace {

// Returns false, and poisons it, if the host's kernel gave no such result.
bool fill_result(const at::Tensor& to, const at::Tensor& from) {
    if (!to.defined() || to.numel() == 0) {
        return true;
    }
    if (from.defined() && to.sizes() == from.sizes()) {
        at::Tensor target = to;
        make_ready_to_overwrite(target);
        target.copy_(from);
        return true;
    }
    poison(to);
    return false;
}

void poison_all(const c10::IValue& value) {
    for (const at::Tensor& tensor : tensors_of(value)) {
        if (tensor.defined()) {
            poison(tensor);
        }
    }
}

} // namespace

bool is_written(const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

Computation::Computation(const c10::OperatorHandle& operation, const Values& arguments,
                         const Values& results, HostFunction function,
                         std::optional<RandomPlace> random)
    : operation_(operation), function_(function), random_(random) {
    const c10::FunctionSchema& schema = operation.schema();
    for (size_t index = 0; index < arguments.size(); ++index) {
        const c10::Argument& declared = schema.arguments()[index];
        arguments_.push_back(for_host(arguments[index]));
        if (is_written(declared)) {
            written_.push_back(index);
        }
        if (declared.name() == "generator") {
            generator_argument_ = index;
        } else if (declared.name() == "pin_memory" && arguments_.back().isBool()) {
            arguments_.back() = false;
        }
    }
    for (size_t index = 0; index < results.size(); ++index) {
        // What a function returns of its arguments is written there.
        const bool is_new = !is_written(schema.returns()[index]);
        results_.push_back(is_new ? for_host(results[index]) : c10::IValue());
    }
}

void Computation::run() {
    try {
        const Beneath beneath;
        make_arguments_ready();
        write(computed());
        return;
    } catch (const c10::Error& problem) {
        say_refused(operation_.schema().name(), problem.what_without_backtrace());
        if (writes_at_an_index(operation_.schema().name()) &&
            dynamic_cast<const c10::IndexError*>(&problem) != nullptr) {
            emu_device_assert(); // what is written out of bounds stops a device
        }
    } catch (const std::exception& problem) {
        say_refused(operation_.schema().name(), problem.what());
    }
    note_uncomputed(operation_.schema().name(), "values");
    give_up();
}

void Computation::give_up() {
    try {
        const Beneath beneath;
        for (const size_t index : written_) {
            poison_all(arguments_[index]);
        }
        for (const c10::IValue& result : results_) {
            poison_all(result);
        }
    } catch (const std::exception& problem) {
        say_refused(operation_.schema().name(), problem.what());
    }
}

void Computation::make_arguments_ready() const {
    if (!any_unwritten()) {
        return;
    }
    const bool overwrites = !arguments_.empty() && arguments_[0].isTensor() &&
                            overwrites_first_argument(operation_.schema().name());
    for (size_t index = overwrites ? 1 : 0; index < arguments_.size(); ++index) {
        make_ready(arguments_[index]);
    }
    // Last: the others may be parts of it.
    if (overwrites) {
        make_ready_to_overwrite(arguments_[0].toTensor());
    }
}

Values Computation::computed() {
    std::optional<at::Generator> generator;
    if (random_) {
        generator = random_->generator();
    }
    if (function_ != nullptr) {
        return function_(arguments_, generator);
    }
    Values stack = arguments_;
    if (generator && generator_argument_) {
        stack[*generator_argument_] = *generator;
    }
    operation_.callBoxed(stack);
    return stack;
}

void Computation::write(const Values& values) {
    for (size_t index = 0; index < results_.size() && index < values.size(); ++index) {
        // A kernel writes into the results that it is given; a function of ours returns its own.
        const bool is_given =
            function_ != nullptr && results_[index].isNone() && index < written_.size();
        const std::vector<at::Tensor> to =
            tensors_of(is_given ? arguments_[written_[index]] : results_[index]);
        const std::vector<at::Tensor> from = tensors_of(values[index]);
        for (size_t item = 0; item < to.size(); ++item) {
            const at::Tensor given = item < from.size() ? from[item] : at::Tensor();
            // Behind the first, some kernels of the two devices keep different notes for the
            // backward pass.
            if (!fill_result(to[item], given) && index == 0) {
                note_uncomputed(operation_.schema().name(), "sizes");
            }
        }
    }
}

void give(at::Device device, const std::shared_ptr<Computation>& computation, bool compute) {
    enqueue(device, [computation, compute] {
        if (compute) {
            computation->run();
        } else {
            computation->give_up();
        }
    });
}

} // namespace tracehook::rehearsal::values
