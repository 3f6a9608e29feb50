#include "rehearsal/values/host_functions.h"
#include "rehearsal/values/tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/constant_pad_nd.h>
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// softmax(scale * Q K^T + bias) in float, with a mask of what dropout leaves.
struct Attention {
    at::Tensor query;
    at::Tensor key;
    at::Tensor value;
    at::Tensor bias; // undefined: none
    double dropout = 0;
    bool causal = false;
    bool from_bottom_right = false; // of a causal mask, else from the top left
    std::optional<double> given_scale;
    std::optional<at::Generator> generator; // what dropout takes its numbers from, else a new one
    uint64_t seed = 0;                      // of this

    // Fewer heads of keys than of queries: each serves several.
    at::Tensor for_all_heads(const at::Tensor& tensor) const {
        const int64_t repeats = query.size(-3) / tensor.size(-3);
        return repeats == 1 ? tensor : tensor.repeat_interleave(repeats, -3);
    }

    double scale() const {
        return given_scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
    }

    at::Tensor scores() const {
        at::Tensor all = at::matmul(query, for_all_heads(key).transpose(-2, -1)) * scale();
        if (causal) {
            const int64_t ahead = from_bottom_right ? all.size(-1) - all.size(-2) : 0;
            const at::Tensor seen =
                at::ones({all.size(-2), all.size(-1)}, at::TensorOptions(at::kBool)).tril(ahead);
            all = all.masked_fill(seen.logical_not(), -kInfinity);
        }
        if (bias.defined()) {
            all = bias.scalar_type() == at::kBool ? all.masked_fill(bias.logical_not(), -kInfinity)
                                                  : all + bias;
        }
        return all;
    }

    at::Tensor mask(const at::Tensor& weights) const {
        if (dropout == 0) {
            return at::ones({}, weights.options());
        }
        at::Tensor kept = at::empty(weights.sizes(), weights.options());
        kept.bernoulli_(1 - dropout, generator ? *generator : generator_of(seed, 0));
        return dropout < 1 ? kept / (1 - dropout) : kept;
    }
};

std::optional<double> scale_of(const c10::IValue& value) {
    return value.isNone() ? std::nullopt : std::optional(value.toDouble());
}

at::Tensor optional_tensor(const c10::IValue& value) {
    return value.isTensor() ? value.toTensor() : at::Tensor();
}

uint64_t new_seed(std::optional<at::Generator>& generator) {
    return generator ? at::check_generator<at::CPUGeneratorImpl>(*generator)->random64() >> 1 : 0;
}

at::Tensor seed_tensor(uint64_t seed, at::IntArrayRef sizes, at::ScalarType type) {
    return at::full(sizes, static_cast<int64_t>(seed), at::TensorOptions(at::kLong)).to(type);
}

uint64_t seed_of(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() == 0) {
        return 0;
    }
    return static_cast<uint64_t>(tensor.to(at::kLong).flatten()[0].item<int64_t>());
}

constexpr int64_t kOwnSeed = -1;

// PyTorch gives seed and offset of the device's generator on the host, except in a graph: there the
// forward pass writes its own seed on the device, with kOwnSeed as the offset.
uint64_t seed_of_efficient(const at::Tensor& seed, const at::Tensor& offset) {
    const uint64_t given = seed_of(seed);
    const uint64_t at = seed_of(offset);
    if (static_cast<int64_t>(at) == kOwnSeed) {
        return given;
    }
    std::optional<at::Generator> generator = generator_of(given, at);
    return new_seed(generator);
}

struct Forward {
    at::Tensor output;
    at::Tensor logsumexp;
};

Forward forward(const Attention& attention, at::ScalarType type) {
    const at::Tensor scores = attention.scores();
    const at::Tensor weights = at::_safe_softmax(scores, -1);
    const at::Tensor output =
        at::matmul(weights * attention.mask(weights), attention.for_all_heads(attention.value));
    return {output.to(type), scores.logsumexp(-1)};
}

struct Gradients {
    at::Tensor query;
    at::Tensor key;
    at::Tensor value;
    at::Tensor scores;
};

at::Tensor sum_heads(const at::Tensor& gradient, const at::Tensor& like) {
    const int64_t heads = like.size(-3);
    if (gradient.size(-3) == heads) {
        return gradient;
    }
    return gradient.unflatten(-3, {heads, gradient.size(-3) / heads}).sum(-3);
}

Gradients backward(const Attention& attention, const at::Tensor& out_gradient) {
    const at::Tensor weights = at::_safe_softmax(attention.scores(), -1);
    const at::Tensor mask = attention.mask(weights);
    const at::Tensor value = attention.for_all_heads(attention.value);
    const at::Tensor value_gradient = at::matmul((weights * mask).transpose(-2, -1), out_gradient);
    const at::Tensor toward_weights = at::matmul(out_gradient, value.transpose(-2, -1)) * mask;
    const at::Tensor toward_scores =
        weights * (toward_weights - (toward_weights * weights).sum(-1, true));
    const at::Tensor scaled = toward_scores * attention.scale();
    const at::Tensor key_gradient = at::matmul(scaled.transpose(-2, -1), attention.query);
    return {at::matmul(scaled, attention.for_all_heads(attention.key)),
            sum_heads(key_gradient, attention.key), sum_heads(value_gradient, attention.value),
            toward_scores};
}

Attention inputs(const Values& arguments, size_t first) {
    Attention attention;
    attention.query = wide(arguments[first].toTensor());
    attention.key = wide(arguments[first + 1].toTensor());
    attention.value = wide(arguments[first + 2].toTensor());
    return attention;
}

// Where the sequences of a packed batch begin, and where the last one ends.
std::vector<int64_t> bounds(const at::Tensor& offsets) {
    const at::Tensor all = offsets.to(at::kLong).contiguous();
    return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

} // namespace

Values flash_attention(const Values& arguments, std::optional<at::Generator>& generator) {
    Attention attention = inputs(arguments, 0);
    attention.dropout = arguments[3].toDouble();
    attention.causal = arguments[4].toBool();
    attention.given_scale = scale_of(arguments[6]);
    attention.seed = new_seed(generator);
    const Forward made = forward(attention, arguments[0].toTensor().scalar_type());
    const c10::IValue none{at::Tensor()};
    return {made.output,
            made.logsumexp,
            none,
            none,
            c10::IValue(),
            c10::IValue(),
            seed_tensor(attention.seed, {2}, at::kUInt64)};
}

Values flash_attention_backward(const Values& arguments, std::optional<at::Generator>&) {
    Attention attention = inputs(arguments, 1);
    attention.dropout = arguments[10].toDouble();
    attention.causal = arguments[11].toBool();
    attention.seed = seed_of(arguments[12].toTensor());
    attention.given_scale = scale_of(arguments[14]);
    const Gradients found = backward(attention, wide(arguments[0].toTensor()));
    return {found.query, found.key, found.value};
}

Values efficient_attention(const Values& arguments, std::optional<at::Generator>& generator) {
    Attention attention = inputs(arguments, 0);
    attention.bias = optional_tensor(arguments[3]);
    attention.dropout = arguments[5].toDouble();
    attention.causal = arguments[6].toBool();
    attention.given_scale = scale_of(arguments[7]);
    attention.seed = new_seed(generator);
    const Forward made = forward(attention, arguments[0].toTensor().scalar_type());
    return {made.output, made.logsumexp, seed_tensor(attention.seed, {}, at::kLong),
            at::full({}, kOwnSeed, at::TensorOptions(at::kLong))};
}

Values efficient_attention_backward(const Values& arguments, std::optional<at::Generator>&) {
    Attention attention = inputs(arguments, 1);
    attention.bias = optional_tensor(arguments[4]);
    attention.seed = seed_of_efficient(arguments[7].toTensor(), arguments[8].toTensor());
    attention.dropout = arguments[9].toDouble();
    attention.causal = arguments[11].toBool();
    attention.given_scale = scale_of(arguments[12]);
    const Gradients found = backward(attention, wide(arguments[0].toTensor()));
    at::Tensor bias_gradient;
    if (attention.bias.defined() && attention.bias.numel() != 0) {
        bias_gradient = found.scores.sum_to_size(attention.bias.sizes());
    }
    return {found.query, found.key, found.value, bias_gradient};
}

// Forward only. Sequences of different lengths lie one after another in a batch of one.
Values attention_of_sequences(const Values& arguments, std::optional<at::Generator>& generator) {
    constexpr int64_t kFromBottomRight = 2;
    constexpr int64_t kBlock = 32; // rows that the kernel rounds up to in what it notes
    const Attention whole = inputs(arguments, 0);
    const at::Tensor& query = whole.query;
    const at::Tensor bias = optional_tensor(arguments[3]);
    at::Tensor output = at::empty(
        {query.size(0), query.size(1), query.size(2), whole.value.size(-1)}, query.options());
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
        at::full({sequences, query.size(2), noted}, kInfinity, query.options().dtype(at::kFloat));
    Attention part = whole;
    part.dropout = arguments[8].toDouble();
    part.causal = arguments[9].toInt() != 0;
    part.from_bottom_right = arguments[9].toInt() == kFromBottomRight;
    part.given_scale = scale_of(arguments[11]);
    part.generator = generator;
    for (int64_t number = 0; number < sequences; ++number) {
        // Of rows, heads, values.
        const auto at_of = [&](const at::Tensor& tensor, const std::vector<int64_t>& starts) {
            const auto place = static_cast<std::size_t>(number);
            return packed ? tensor[0].slice(0, starts[place], starts[place + 1]) : tensor[number];
        };
        part.query = at_of(query, rows).transpose(0, 1);
        part.key = at_of(whole.key, columns).transpose(0, 1);
        part.value = at_of(whole.value, columns).transpose(0, 1);
        part.bias = bias.defined() ? wide(packed ? bias : bias[number]) : bias;
        const Forward made = forward(part, query.scalar_type());
        at_of(output, rows).copy_(made.output.transpose(0, 1));
        if (noted != 0) {
            logsumexp[number].slice(1, 0, made.logsumexp.size(1)).copy_(made.logsumexp);
        }
    }
    return {output.to(arguments[0].toTensor().scalar_type()), logsumexp};
}

// Of nested tensors a device rounds the longest length up, where the host does not.
Values transform_for_heads(const Values& arguments, std::optional<at::Generator>&) {
    constexpr int64_t kMultiple = 8;
    const at::Tensor qkv = arguments[0].toTensor();
    const auto [query, key, value] =
        at::_transform_bias_rescale_qkv(qkv, arguments[1].toTensor(), arguments[2].toInt());
    const int64_t missing =
        qkv.is_nested() ? (kMultiple - query.size(2) % kMultiple) % kMultiple : 0;
    const auto padded = [missing](const at::Tensor& tensor) {
        return at::constant_pad_nd(tensor, {0, 0, 0, missing});
    };
    return {padded(query), padded(key), padded(value)};
}

} // namespace tracehook::rehearsal::values
