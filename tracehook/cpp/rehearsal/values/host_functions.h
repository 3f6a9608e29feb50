// What the host does for operations that PyTorch has for CUDA only, from their documented meaning.
//
// Any thread, nothing held; the tensors are on the host.
#pragma once

#include "rehearsal/values/computation.h"

namespace tracehook::rehearsal::values {

// The function for an operation; null if its CPU kernel does the work.
HostFunction host_function_of(const c10::OperatorName& name);

// attention.cpp: scaled_dot_product_attention with its three kernels, and their backward passes.
OnHost flash_attention, flash_attention_backward, efficient_attention, efficient_attention_backward;
OnHost attention_of_sequences, transform_for_heads;

// normalization.cpp: also the parts of synchronized batch normalization.
OnHost layer_norm_backward, batch_norm_backward, rms_norm_backward;
OnHost batch_norm_stats, batch_norm_elemt, batch_norm_gather_stats_with_counts;
OnHost batch_norm_backward_reduce, batch_norm_backward_elemt;

// host_functions.cpp; the last two: matrix products whose result has a type of its own.
OnHost log_sigmoid_backward, dropout, product_of_type, sum_with_product_of_type;

// cells.cpp: one step of a recurrent network.
OnHost lstm_cell, lstm_cell_backward, gru_cell, gru_cell_backward;

} // namespace tracehook::rehearsal::values
