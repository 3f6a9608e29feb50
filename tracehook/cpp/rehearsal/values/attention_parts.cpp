#include "rehearsal/values/host_functions.h"
#include "rehearsal/values/tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tril.h>

#include "rehearsal/values/random.h"

#include <cmath>
#include <limits>

namespace tracehook::rehearsal::values {
namespace {

// What a causal mask is aligned with, else with the top left; 0: there is no mask.
constexpr int64_t kFromBottomRight = 2;
constexpr int64_t kBlock = 32; // rows that the kernel rounds up to in what it notes
constexpr double kMasked = -std::numeric_limits<double>::infinity();

struct Part {
    at::Tensor output;    // rows, heads, values
    at::Tensor logsumexp; // heads, rows
};

// Of one sequence: tensors of rows, heads, values; `bias` of heads, rows, rows.
Part attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
            const at::Tensor& bias, double scale, int64_t causal, double dropout,
            std::optional<at::Generator>& generator) {
    const at::Tensor q = query.transpose(0, 1);
    at::Tensor scores = at::matmul(q, key.transpose(0, 1).transpose(-2, -1)) * scale;
    if (causal != 0) {
        const int64_t ahead = causal == kFromBottomRight ? scores.size(-1) - scores.size(-2) : 0;
        const at::Tensor seen =
            at::ones({scores.size(-2), scores.size(-1)}, at::TensorOptions(at::kBool)).tril(ahead);
        scores = scores.masked_fill(seen.logical_not(), kMasked);
    }
    if (bias.defined()) {
        scores = scores + bias;
    }
    at::Tensor weights = at::_safe_softmax(scores, -1);
    if (dropout > 0) {
        at::Tensor kept = at::empty(weights.sizes(), weights.options());
        kept.bernoulli_(1 - dropout, generator);
        weights = dropout < 1 ? weights * kept / (1 - dropout) : weights * kept;
    }
    return {at::matmul(weights, value.transpose(0, 1)).transpose(0, 1), scores.logsumexp(-1)};
}

// Where the sequences of a packed batch begin, and where the last one ends.
std::vector<int64_t> bounds(const at::Tensor& offsets) {
    const at::Tensor all = offsets.to(at::kLong).contiguous();
    return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

} // namespace

// Forward only. Sequences of different lengths lie one after another in a batch of one.
Values attention_of_sequences(const Values& arguments, std::optional<at::Generator>& generator) {
    const at::Tensor query = wide(arguments[0].toTensor());
    const at::Tensor key = wide(arguments[1].toTensor());
    const at::Tensor value = wide(arguments[2].toTensor());
    const at::Tensor bias = arguments[3].isTensor() ? wide(arguments[3].toTensor()) : at::Tensor();
    const double dropout = arguments[8].toDouble();
    const int64_t causal = arguments[9].toInt();
    const double scale = arguments[11].isNone() ? 1 / std::sqrt(static_cast<double>(query.size(-1)))
                                                : arguments[11].toDouble();
    at::Tensor output =
        at::empty({query.size(0), query.size(1), query.size(2), value.size(-1)}, query.options());
    const bool packed = arguments[4].isTensor() && arguments[5].isTensor();
    std::vector<int64_t> rows;
    std::vector<int64_t> columns;
    if (packed) {
        rows = bounds(arguments[4].toTensor());
        columns = bounds(arguments[5].toTensor());
    }
    const int64_t sequences = packed ? static_cast<int64_t>(rows.size()) - 1 : query.size(0);
    const int64_t longest = packed && arguments[6].isInt() ? arguments[6].toInt() : query.size(1);
    const int64_t noted = arguments[10].toBool() ? (longest + kBlock - 1) / kBlock * kBlock : 0;
    at::Tensor logsumexp =
        at::full({sequences, query.size(2), noted}, std::numeric_limits<double>::infinity(),
                 query.options().dtype(at::kFloat));
    for (int64_t number = 0; number < sequences; ++number) {
        const auto at_of = [&](const at::Tensor& tensor, const std::vector<int64_t>& starts) {
            const auto place = static_cast<std::size_t>(number);
            return packed ? tensor[0].slice(0, starts[place], starts[place + 1]) : tensor[number];
        };
        const at::Tensor its_bias = bias.defined() && !packed ? bias[number] : bias;
        const Part part = attend(at_of(query, rows), at_of(key, columns), at_of(value, columns),
                                 its_bias, scale, causal, dropout, generator);
        at_of(output, rows).copy_(part.output);
        if (noted != 0) {
            logsumexp[number].slice(1, 0, part.logsumexp.size(1)).copy_(part.logsumexp);
        }
    }
    return {output.to(arguments[0].toTensor().scalar_type()), logsumexp};
}

} // namespace tracehook::rehearsal::values
