// Random numbers of emulated devices: the same seed and offset give the same numbers.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

namespace tracehook::rehearsal::values {

// Where the numbers of one operation begin.
struct RandomPlace {
    uint64_t seed = 0;
    uint64_t offset = 0;
    // In a graph: PyTorch writes there, on the device, before each launch. `offset` counts from it.
    const int64_t* seed_of_launch = nullptr;
    const int64_t* offset_of_launch = nullptr;

    // A generator of the host that begins there. To be called in the stream's order.
    at::Generator generator() const;
};

// The place of an operation with these arguments on `device`, from what the device's generator has
// now. To be called before PyTorch's CUDA kernel, which moves the offset.
RandomPlace random_place(const std::vector<c10::IValue>& arguments, at::Device device);

// A generator of the host from two numbers.
at::Generator generator_of(uint64_t seed, uint64_t offset);

} // namespace tracehook::rehearsal::values
