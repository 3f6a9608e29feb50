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
#include <string>
#include <utility>

namespace tracehook::rehearsal::values {

// The last values on the stack.
Values last(const torch::jit::Stack& stack, size_t count);

// The device of all tensors that are not on the host; none if they are on several, or if a tensor
// with elements is on the host that is more than a number.
struct Place {
    std::optional<at::Device> device;
    bool several = false;
    bool on_host = false;
    bool sparse = false;
};

Place place_of(const Values& arguments);

// What the kernels are made of.
class DeviceKernel : public c10::OperatorKernel {
  public:
    explicit DeviceKernel(c10::SafeKernelFunction original) : original_(std::move(original)) {}

  protected:
    // Calls PyTorch's kernel with what the stack holds.
    void call_original(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) const {
        original_.callBoxed(operation, keys, stack);
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

    void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);

  private:
    void make_results(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack, const Values& arguments, at::Device device) const;

    const How how_;
};

// The sizes of the results depend on values: the host waits for them, and computes at once.
class SizedByValues : public DeviceKernel {
  public:
    using DeviceKernel::DeviceKernel;
    void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);
};

// PyTorch makes it of other operations, which are computed one by one, and sometimes of kernels of
// its own. If it launched one of those, the host computes the whole, again.
class MadeOfOthers : public DeviceKernel {
  public:
    // `host`: where the host's kernel stands for the tensors of this operation.
    MadeOfOthers(c10::SafeKernelFunction original, c10::DispatchKey host)
        : DeviceKernel(std::move(original)), host_(host) {}

    void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);

  private:
    const c10::DispatchKey host_;
};

// New memory, which a program may read before it writes.
class Empty : public DeviceKernel {
  public:
    using DeviceKernel::DeviceKernel;
    void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);
};

} // namespace tracehook::rehearsal::values
