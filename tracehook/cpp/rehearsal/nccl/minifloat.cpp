#include "minifloat.h"

#include <bit>
#include <cmath>
#include <limits>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr int kFloatMantissa = 23;
constexpr int kFloatBias = 127;

int bias(FloatFormat format) {
    return (1 << (format.exponent - 1)) - 1;
}

} // namespace

float decode(FloatFormat format, std::uint32_t bits) {
    const std::uint32_t mantissa = bits & ((1U << format.mantissa) - 1);
    const std::uint32_t exponents = (1U << format.exponent) - 1;
    const std::uint32_t exponent = (bits >> format.mantissa) & exponents;
    const bool negative = (bits >> (format.mantissa + format.exponent)) & 1;
    const bool all_ones = mantissa == (1U << format.mantissa) - 1;

    float value = 0;
    if (exponent == 0) {
        value = std::ldexp(static_cast<float>(mantissa), 1 - bias(format) - format.mantissa);
    } else if (exponent == exponents && format.infinite) {
        value = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == exponents && all_ones) {
        value = std::numeric_limits<float>::quiet_NaN();
    } else {
        const std::uint32_t moved = exponent + kFloatBias - bias(format);
        value = std::bit_cast<float>((moved << kFloatMantissa) |
                                     (mantissa << (kFloatMantissa - format.mantissa)));
    }
    return negative ? -value : value;
}

std::uint32_t encode(FloatFormat format, float value) {
    const std::uint32_t sign = std::signbit(value) ? 1U << (format.mantissa + format.exponent) : 0;
    const std::uint32_t top = ((1U << format.exponent) - 1)
                              << format.mantissa; // infinity, if there is one
    const std::uint32_t not_a_number = top | ((1U << format.mantissa) - 1);
    if (std::isnan(value)) {
        return sign | not_a_number;
    }
    const float size = std::fabs(value);
    if (size < std::ldexp(1.0F, 1 - bias(format))) {
        // Below the smallest normal number the bits count its steps; a carry lands on that number
        // itself.
        return sign | static_cast<std::uint32_t>(
                          std::nearbyint(std::ldexp(size, bias(format) + format.mantissa - 1)));
    }
    const int shift = kFloatMantissa - format.mantissa;
    std::uint32_t bits = std::bit_cast<std::uint32_t>(size);
    bits += (1U << (shift - 1)) - 1 + ((bits >> shift) & 1);
    bits >>= shift;
    bits -= static_cast<std::uint32_t>(kFloatBias - bias(format)) << format.mantissa;
    if (format.infinite) {
        return sign | (bits >= top ? top : bits);
    }
    return sign | (bits >= not_a_number ? not_a_number : bits);
}

} // namespace tracehook::rehearsal::nccl
