// The kernels that a rehearsal puts in the place of PyTorch's CUDA kernels. Each runs the CUDA
// kernel as well, where that is possible: it checks the arguments, takes memory and launches as on
// a device.
//
// Any thread that calls PyTorch, holding what it holds then. A kernel throws what the CUDA kernel
// throws.
#pragma once

#include "rehearsal/values/computation.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/op_registration/op_registration.h>
#include <ATen/core/stack.h>
#include <optional>
#include <utility>

namespace tracehook::rehearsal::values {

// A call of an operation, as PyTorch's dispatcher hands it over.
struct Call {
    const c10::OperatorHandle& operation;
    c10::DispatchKeySet keys;
    torch::jit::Stack* stack; // the arguments at its end, and afterwards the results

    const c10::FunctionSchema& schema() const { return operation.schema(); }
    Values arguments() const { return last(schema().arguments().size()); }
    Values results() const { return last(schema().returns().size()); }

  private:
    Values last(size_t count) const {
        return {stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()};
    }
};

// What the kernels are made of.
class DeviceKernel : public c10::OperatorKernel {
  public:
    explicit DeviceKernel(c10::SafeKernelFunction original) : original_(std::move(original)) {}

    void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
        work({operation, keys, stack});
    }

  protected:
    virtual void work(const Call& call) = 0;

    // Calls PyTorch's kernel.
    void call_original(const Call& call) const {
        original_.callBoxed(call.operation, call.keys, call.stack);
    }

  private:
    c10::SafeKernelFunction original_;
};

// The sizes of the results are known from those of the arguments. The CUDA kernel makes them, and
// the host computes the values in the stream's order.
class Computed : public DeviceKernel {
  public:
    struct How {
        bool product = false;          // its work grows faster than its tensors
        bool part_of_others = false;   // computed also within another operation's CUDA kernel
        bool random = false;           // it takes random numbers
        bool without_original = false; // its CUDA kernel calls a library that is not emulated
        HostFunction function = nullptr;
    };

    Computed(c10::SafeKernelFunction original, How how)
        : DeviceKernel(std::move(original)), how_(how) {}

  private:
    void work(const Call& call) override;
    void make_results(const Call& call, const Values& arguments, at::Device device) const;

    const How how_;
};

// The sizes of the results depend on values: the host waits for them, and computes at once.
class SizedByValues : public DeviceKernel {
  public:
    using DeviceKernel::DeviceKernel;

  private:
    void work(const Call& call) override;
};

// PyTorch makes it of other operations, which are computed one by one, and sometimes of kernels of
// its own. If it launched one of those, the host computes the whole, again.
class MadeOfOthers : public DeviceKernel {
  public:
    // `host`: where the host's kernel stands for the tensors of this operation.
    MadeOfOthers(c10::SafeKernelFunction original, c10::DispatchKey host)
        : DeviceKernel(std::move(original)), host_(host) {}

  private:
    void work(const Call& call) override;

    const c10::DispatchKey host_;
};

// New memory, which a program may read before it writes.
class Empty : public DeviceKernel {
  public:
    using DeviceKernel::DeviceKernel;

  private:
    void work(const Call& call) override;
};

} // namespace tracehook::rehearsal::values
