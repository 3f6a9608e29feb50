// The small floating-point types of the collectives, to and from float: IEEE half, bfloat16 and the
// two of 8 bits.
//
// Rounds to nearest even, as the hardware does. Any thread.
#pragma once

#include <cstdint>

namespace tracehook::rehearsal::nccl {

// `exponent` and `mantissa` count bits. `infinite`: the highest exponent means infinity; otherwise
// it is a number like any other and only all ones is not one (the "fn" kind).
struct FloatFormat {
    int exponent;
    int mantissa;
    bool infinite;
};

inline constexpr FloatFormat kHalf{5, 10, true};
inline constexpr FloatFormat kBrain{8, 7, true};
inline constexpr FloatFormat kE4m3{4, 3, false};
inline constexpr FloatFormat kE5m2{5, 2, true};

float decode(FloatFormat format, std::uint32_t bits);
std::uint32_t encode(FloatFormat format, float value);

} // namespace tracehook::rehearsal::nccl
