#include "rehearsal/values/poison.h"

#include "rehearsal/cuda/device.h"
#include "rehearsal/values/limits.h"
#include "rehearsal/values/unwritten.h"

#include <ATen/ops/fill.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace tracehook::rehearsal::values {
namespace {

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

void poison(const at::Tensor& alias) {
    const int64_t most = most_elements();
    poison_up_to(memory_is_short() ? std::min(kMostNew, most) : most, alias);
}

void poison_new(const at::Tensor& alias) {
    if (byte_of(alias.scalar_type()) == 0 &&
        emu_memory_is_open(alias.const_data_ptr(), alias.nbytes()) != 0) {
        return;
    }
    poison_up_to(std::min(kMostNew, most_elements()), alias);
}

} // namespace tracehook::rehearsal::values
