// What the host does for operations that PyTorch has for CUDA only, from their documented meaning.
//
// Any thread, nothing held; the tensors are on the host.
#pragma once

#include "rehearsal/values/computation.h"

#include <string>

namespace tracehook::rehearsal::values {

// The function for an operation; null if its CPU kernel does the work.
HostFunction host_function_of(const c10::OperatorName& name);

// attention.cpp, attention_parts.cpp: scaled_dot_product_attention with its three kernels, and
// their backward passes.
Values flash_attention(const Values& arguments, std::optional<at::Generator>& generator);
Values flash_attention_backward(const Values& arguments, std::optional<at::Generator>& generator);
Values efficient_attention(const Values& arguments, std::optional<at::Generator>& generator);
Values efficient_attention_backward(const Values& arguments,
                                    std::optional<at::Generator>& generator);
Values attention_of_sequences(const Values& arguments, std::optional<at::Generator>& generator);
Values transform_for_heads(const Values& arguments, std::optional<at::Generator>& generator);

// normalization.cpp: also the parts of synchronized batch normalization.
Values layer_norm_backward(const Values& arguments, std::optional<at::Generator>& generator);
Values batch_norm_backward(const Values& arguments, std::optional<at::Generator>& generator);
Values rms_norm_backward(const Values& arguments, std::optional<at::Generator>& generator);
Values batch_norm_stats(const Values& arguments, std::optional<at::Generator>& generator);
Values batch_norm_elemt(const Values& arguments, std::optional<at::Generator>& generator);
Values batch_norm_gather_stats_with_counts(const Values& arguments,
                                           std::optional<at::Generator>& generator);
Values batch_norm_backward_reduce(const Values& arguments, std::optional<at::Generator>& generator);
Values batch_norm_backward_elemt(const Values& arguments, std::optional<at::Generator>& generator);

// host_functions.cpp
Values log_sigmoid_backward(const Values& arguments, std::optional<at::Generator>& generator);
Values dropout(const Values& arguments, std::optional<at::Generator>& generator);

// Matrix products whose result has a type of its own.
Values product_of_type(const Values& arguments, std::optional<at::Generator>& generator);
Values sum_with_product_of_type(const Values& arguments, std::optional<at::Generator>& generator);

// cells.cpp: one step of a recurrent network.
Values lstm_cell(const Values& arguments, std::optional<at::Generator>& generator);
Values lstm_cell_backward(const Values& arguments, std::optional<at::Generator>& generator);
Values gru_cell(const Values& arguments, std::optional<at::Generator>& generator);
Values gru_cell_backward(const Values& arguments, std::optional<at::Generator>& generator);

} // namespace tracehook::rehearsal::values
