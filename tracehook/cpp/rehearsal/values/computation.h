// One operation, computed on the host for a device: the arguments as they were when the program
// called it, and the results that PyTorch's CUDA kernel has made room for.
//
// Made by the calling thread; run by any thread, once or, in a CUDA graph, often.
#pragma once

#include "rehearsal/values/random.h"

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <vector>

namespace tracehook::rehearsal::values {

using Values = std::vector<c10::IValue>;

// What the host does where PyTorch has no CPU kernel of that operation: it takes the arguments (on
// the host) and returns the results.
using OnHost = Values(const Values& arguments, std::optional<at::Generator>& generator);
using HostFunction = OnHost*;

class Computation {
  public:
    // `arguments` and `results` are those of the device, after the CUDA kernel returned. `function`
    // may be null: then the operation's CPU kernel works.
    Computation(const c10::OperatorHandle& operation, const Values& arguments,
                const Values& results, HostFunction function, std::optional<RandomPlace> random);

    // Writes the results, or poisons them if the host's kernel refuses the arguments. Never throws.
    void run();

    // Poisons all that the operation writes, instead of computing it. Never throws.
    void give_up();

  private:
    void make_arguments_ready() const;
    Values computed();
    void write(const Values& values);

    c10::OperatorHandle operation_;
    Values arguments_;
    Values results_;
    // Those of arguments_ that the operation writes to.
    std::vector<size_t> written_;
    HostFunction function_;
    std::optional<RandomPlace> random_;
    std::optional<size_t> generator_argument_;
};

// Whether an operation writes to this argument, or to what it returns as this result.
bool is_written(const c10::Argument& argument);

// Gives a computation to the current stream of a device: to run, or to give up.
void give(at::Device device, const std::shared_ptr<Computation>& computation, bool compute);

} // namespace tracehook::rehearsal::values
