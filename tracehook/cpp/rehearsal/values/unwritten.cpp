#include "rehearsal/values/unwritten.h"

#include "rehearsal/cuda/device.h"
#include "rehearsal/values/tensors.h"

#include <algorithm>
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
        std::sort(loops_.begin(), loops_.end(),
                  [](const Loop& left, const Loop& right) { return left.step > right.step; });
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

} // namespace tracehook::rehearsal::values
