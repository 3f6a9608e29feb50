#include "rehearsal/values/unwritten.h"

#include "rehearsal/cuda/device.h"
#include "rehearsal/values/limits.h"
#include "rehearsal/values/tensors.h"

#include <ATen/ops/fill.h>
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace tracehook::rehearsal::values {
namespace {

// Smaller gaps are filled along: whoever reads takes their pages anyway.
constexpr int64_t kPage = 4096;

// The memory that a tensor touches: pieces without large gaps, in loops over what stands apart.
class Touched {
  public:
    explicit Touched(const at::Tensor& tensor)
        : begin_(static_cast<const char*>(tensor.const_data_ptr())), bytes_(tensor.element_size()) {
        for (int64_t index = 0; index < tensor.dim(); ++index) {
            if (tensor.size(index) > 1) {
                loops_.push_back({tensor.size(index), tensor.stride(index) * bytes_});
            }
        }
        std::ranges::sort(loops_, std::ranges::greater(), &Loop::step);
        while (!loops_.empty() && loops_.back().step <= bytes_ + kPage) {
            bytes_ += (loops_.back().count - 1) * loops_.back().step;
            loops_.pop_back();
        }
    }

    void make_ready() const {
        if (loops_.empty() || emu_unwritten_any_in(begin_, whole()) != 0) {
            visit(begin_, 0);
        }
    }

  private:
    struct Loop {
        int64_t count;
        int64_t step; // bytes
    };

    size_t whole() const {
        int64_t bytes = bytes_;
        for (const Loop& loop : loops_) {
            bytes += (loop.count - 1) * loop.step;
        }
        return static_cast<size_t>(bytes);
    }

    void visit(const char* at, size_t depth) const {
        if (depth == loops_.size()) {
            if (emu_unwritten_fill(at, static_cast<size_t>(bytes_)) == 0) {
                // It stays as it is, and what is written there must not be taken for unwritten.
                emu_unwritten_forget(at, static_cast<size_t>(bytes_));
            }
            return;
        }
        for (int64_t index = 0; index < loops_[depth].count; ++index) {
            visit(at + index * loops_[depth].step, depth + 1);
        }
    }

    const char* const begin_;
    int64_t bytes_;
    std::vector<Loop> loops_; // the longest step first
};

bool has_memory(const at::Tensor& tensor) {
    return tensor.defined() && tensor.numel() != 0 && tensor.has_storage();
}

constexpr int64_t kEdge = 1024; // elements
constexpr int64_t kMostNew = int64_t{1} << 20;

// The byte of which a NaN of that type can be made, or zero. Float4_e2m1fn_x2 has no NaN.
unsigned char byte_of(at::ScalarType type) {
    if (type == at::ScalarType::Float8_e4m3fnuz || type == at::ScalarType::Float8_e5m2fnuz) {
        return 0x80;
    }
    const bool has_nan = (c10::isFloatingType(type) || c10::isComplexType(type)) &&
                         type != at::ScalarType::Float4_e2m1fn_x2;
    return has_nan ? 0xFF : 0;
}

void fill_apart(const at::Tensor& alias) {
    at::Tensor plain = alias;
    make_ready(plain);
    if (byte_of(alias.scalar_type()) != 0) {
        plain.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
        plain.zero_();
    }
}

void fill(char* begin, size_t size, unsigned char byte) {
    emu_unwritten_forget(begin, size);
    std::memset(begin, byte, size);
}

void poison_up_to(int64_t most, const at::Tensor& alias) {
    const int64_t count = alias.numel();
    if (count == 0) {
        return;
    }
    if (!alias.is_quantized() && !alias.is_non_overlapping_and_dense()) {
        fill_apart(alias);
        return;
    }
    auto* const begin = static_cast<char*>(alias.mutable_data_ptr());
    const size_t size = alias.nbytes();
    const unsigned char byte = byte_of(alias.scalar_type());
    if (count <= std::max(2 * kEdge, most)) {
        fill(begin, size, byte);
        return;
    }
    const size_t edge = kEdge * alias.element_size();
    fill(begin, edge, byte);
    fill(begin + size - edge, edge, byte);
    emu_unwritten_note(begin + edge, size - 2 * edge, byte);
}

} // namespace

bool any_unwritten() {
    return emu_unwritten_any() != 0;
}

void make_ready(const at::Tensor& alias) {
    if (any_unwritten() && has_memory(alias)) {
        Touched(alias).make_ready();
    }
}

void make_ready_to_overwrite(const at::Tensor& alias) {
    if (!any_unwritten() || !has_memory(alias)) {
        return;
    }
    if (alias.is_non_overlapping_and_dense()) {
        emu_unwritten_forget(alias.const_data_ptr(), alias.nbytes());
    } else {
        make_ready(alias);
    }
}

void make_ready(const c10::IValue& argument) {
    if (!any_unwritten()) {
        return;
    }
    for (const at::Tensor& tensor : tensors_of(argument)) {
        make_ready(tensor);
    }
}

void poison(const at::Tensor& alias) {
    const int64_t most = most_elements();
    poison_up_to(emu_memory_is_short() != 0 ? std::min(kMostNew, most) : most, alias);
}

void poison_new(const at::Tensor& alias) {
    if (byte_of(alias.scalar_type()) == 0 &&
        emu_memory_is_open(alias.const_data_ptr(), alias.nbytes()) != 0) {
        return;
    }
    poison_up_to(std::min(kMostNew, most_elements()), alias);
}

} // namespace tracehook::rehearsal::values
