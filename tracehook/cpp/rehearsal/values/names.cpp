#include "rehearsal/values/names.h"

#include <unordered_set>

namespace tracehook::rehearsal::values {
namespace {

const auto kSyntax = std::regex::ECMAScript | std::regex::optimize;

} // namespace

const std::regex left_alone(
    "view|view_as_.*|_reshape_alias|as_strided|unfold|set_|resize_|_nested_.*|record_stream|"
    "_local_scalar_dense|is_set_to|_pin_memory|is_pinned|_assert_async|"
    "_efficientzerotensor|_use_cudnn_.*|_use_miopen_.*|_fused_sdp_choice|_cudnn_.*|miopen_.*|"
    "cudnn_.*|_record_function.*|_resize_output_|_to_sparse.*|_to_dense|_sparse_semi_.*|"
    "_cslt_.*|quantize_per_.*|_validate_compressed_.*",
    kSyntax);

const std::regex sized_by_values(
    "nonzero|masked_select|equal|_unique|_unique2|unique_dim|unique_consecutive|"
    "unique_dim_consecutive|bincount|repeat_interleave|_ctc_loss.*|_embedding_bag.*|"
    "segment_reduce|_segment_reduce_backward|geqrf|linalg_lstsq",
    kSyntax);

const std::regex without_original(
    "convolution|convolution_backward|_?fft_.*|_?linalg_.*|_?cholesky.*|"
    "ormqr|orgqr|triangular_solve|histc|embedding_dense_backward|embedding_renorm_|"
    "lu_unpack|_lu_with_info|logdet|_histogramdd_.*|_embedding_bag_dense_backward|mode",
    kSyntax);

const std::regex products(
    ".*mm|.*mm_|.*mv|.*mv_|dot|vdot|addr_?|.*bmm_?|_addmm_activation|convolution.*|"
    "_scaled_dot_product_.*|_?linalg_.*|_?cholesky.*|_cdist_.*|geqrf|ormqr|triangular_solve",
    kSyntax);

const std::regex for_sparse(
    "_coalesce|index_select|add_?|sub_?|mm|addmm_?|bmm|mv|addmv|mul_?|_sparse_softmax|"
    "_sparse_softmax_backward_data|_sparse_log_softmax|_sparse_log_softmax_backward_data|"
    "_sparse_sparse_matmul|hspmm|sparse_mask|_sparse_mask_projection|sparse_sampled_addmm|"
    "_sparse_csr_.*|_to_sparse_.*|_sparse_sum_backward|_spsolve",
    kSyntax);

const std::regex between_ranks(".*reduce.*|all_to_all_vdev.*|.*all_gather_out|_async_input_mm",
                               kSyntax);

const std::regex part_of_others("copy_|fill_|zero_|_foreach_copy_", kSyntax);

bool overwrites_first_argument(const std::string& name) {
    static const std::unordered_set<std::string> names{
        "aten::copy_",       "aten::fill_",   "aten::zero_",      "aten::normal_",
        "aten::uniform_",    "aten::random_", "aten::bernoulli_", "aten::exponential_",
        "aten::log_normal_", "aten::cauchy_", "aten::geometric_"};
    return names.contains(name);
}

bool writes_at_an_index(const std::string& name) {
    return name.starts_with("aten::index_put") || name.starts_with("aten::_index_put") ||
           name.starts_with("aten::index_fill");
}

const std::regex
    makes_other_kinds("aten::(quantize_per_.*|_nested_(from_padded|tensor_from_mask|compute_.*))",
                      kSyntax);

} // namespace tracehook::rehearsal::values
