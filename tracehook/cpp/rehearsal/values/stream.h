// Work on the stream that PyTorch uses now, in its order, also in CUDA graphs.
//
// Any thread that may give work to a stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace tracehook::rehearsal::values {

// Gives `work` to the current stream of `device`. It runs at once if nothing is pending there, else
// later on the stream's own thread; in a graph, at every launch. It must not throw, nor call CUDA.
// When the process ends, what has not begun is dropped.
void enqueue(at::Device device, std::function<void()> work);

// Waits until the current stream has done everything. Throws what CUDA says during a capture.
void wait_for_stream(at::Device device);

bool is_capturing(at::Device device);

} // namespace tracehook::rehearsal::values
