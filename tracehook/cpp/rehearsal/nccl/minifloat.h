// The small floating-point types of the collectives, to and from float: IEEE half, bfloat16 and the
// two of 8 bits.
//
// Rounds to nearest even, as the hardware does. Any thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tracehook::rehearsal::nccl {

// `exponent` and `mantissa` count bits. `infinite`: the highest exponent means infinity; otherwise
// it is a number like any other and only all ones is not one (the "fn" kind).
struct FloatFormat {
    int exponent;
    int mantissa;
    bool infinite;

    constexpr int bias() const { return (1 << (exponent - 1)) - 1; }
};

inline constexpr FloatFormat kHalf{5, 10, true};
inline constexpr FloatFormat kBrain{8, 7, true};
inline constexpr FloatFormat kE4m3{4, 3, false};
inline constexpr FloatFormat kE5m2{5, 2, true};

inline constexpr int kFloatMantissa = 23;
inline constexpr int kFloatBias = 127;

inline float decode(FloatFormat format, std::uint32_t bits) {
    const std::uint32_t mantissa = bits & ((1U << format.mantissa) - 1);
    const std::uint32_t exponents = (1U << format.exponent) - 1;
    const std::uint32_t exponent = (bits >> format.mantissa) & exponents;
    const bool negative = (bits >> (format.mantissa + format.exponent)) & 1;
    const bool all_ones = mantissa == (1U << format.mantissa) - 1;

    float value = 0;
    if (exponent == 0) {
        value = std::ldexp(static_cast<float>(mantissa), 1 - format.bias() - format.mantissa);
    } else if (exponent == exponents && format.infinite) {
        value = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == exponents && all_ones) {
        value = std::numeric_limits<float>::quiet_NaN();
    } else {
        const std::uint32_t moved = exponent + kFloatBias - format.bias();
        value = std::bit_cast<float>((moved << kFloatMantissa) |
                                     (mantissa << (kFloatMantissa - format.mantissa)));
    }
    return negative ? -value : value;
}

inline std::uint32_t encode(FloatFormat format, float value) {
    const std::uint32_t sign = std::signbit(value) ? 1U << (format.mantissa + format.exponent) : 0;
    const std::uint32_t top = ((1U << format.exponent) - 1)
                              << format.mantissa; // infinity, if there is one
    const std::uint32_t not_a_number = top | ((1U << format.mantissa) - 1);
    if (std::isnan(value)) {
        return sign | not_a_number;
    }
    const float size = std::fabs(value);
    if (size < std::ldexp(1.0F, 1 - format.bias())) {
        // Below the smallest normal number the bits count its steps; a carry lands on that number
        // itself.
        return sign | static_cast<std::uint32_t>(
                          std::nearbyint(std::ldexp(size, format.bias() + format.mantissa - 1)));
    }
    const int shift = kFloatMantissa - format.mantissa;
    std::uint32_t bits = std::bit_cast<std::uint32_t>(size);
    bits += (1U << (shift - 1)) - 1 + ((bits >> shift) & 1);
    bits >>= shift;
    bits -= static_cast<std::uint32_t>(kFloatBias - format.bias()) << format.mantissa;
    if (format.infinite) {
        return sign | (bits >= top ? top : bits);
    }
    return sign | (bits >= not_a_number ? not_a_number : bits);
}

} // namespace tracehook::rehearsal::nccl
