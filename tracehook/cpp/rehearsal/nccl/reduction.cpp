#include "reduction.h"

#include "minifloat.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::size_t kChunk = 1U << 16; // elements that are reduced at a time
constexpr std::size_t kWide = 8;         // bytes of the widest type that is computed with

// How one data type lies in memory (Stored) and what it is computed with (Wide).
template <typename T, typename W> struct Plain {
    using Stored = T;
    using Wide = W;
    static W widen(T value) { return static_cast<W>(value); }
    static T narrow(W value) { return static_cast<T>(value); }
};

template <typename T, FloatFormat format> struct Small {
    using Stored = T;
    using Wide = float;
    static float widen(T value) { return decode(format, value); }
    static T narrow(float value) { return static_cast<T>(encode(format, value)); }
};

template <typename W> W add(W left, W right) {
    if constexpr (std::is_integral_v<W>) { // signed overflow has to wrap
        return static_cast<W>(static_cast<std::uint64_t>(left) + static_cast<std::uint64_t>(right));
    } else {
        return left + right;
    }
}

template <typename W> W multiply(W left, W right) {
    if constexpr (std::is_integral_v<W>) {
        return static_cast<W>(static_cast<std::uint64_t>(left) * static_cast<std::uint64_t>(right));
    } else {
        return left * right;
    }
}

template <typename Type>
void fold_elements(void* wide, const void* elements, std::size_t count, bool first,
                   const void* scalar, int op) {
    using Wide = typename Type::Wide;
    using Stored = typename Type::Stored;
    auto* sum = static_cast<Wide*>(wide);
    const auto* in = static_cast<const Stored*>(elements);
    Wide factor{1};
    if (scalar != nullptr) {
        Stored stored;
        std::memcpy(&stored, scalar, sizeof stored);
        factor = Type::widen(stored);
    }
    const auto each = [&](auto combine) {
        if (first) {
            for (std::size_t i = 0; i < count; ++i) {
                sum[i] = multiply(factor, Type::widen(in[i]));
            }
            return;
        }
        for (std::size_t i = 0; i < count; ++i) {
            sum[i] = combine(sum[i], multiply(factor, Type::widen(in[i])));
        }
    };
    switch (op) {
    case kProd:
        return each([](Wide left, Wide right) { return multiply(left, right); });
    case kMax:
        return each([](Wide left, Wide right) { return left < right ? right : left; });
    case kMin:
        return each([](Wide left, Wide right) { return right < left ? right : left; });
    default:
        return each([](Wide left, Wide right) { return add(left, right); });
    }
}

template <typename Type>
void store_elements(void* elements, const void* wide, std::size_t count, int op, int ranks) {
    using Wide = typename Type::Wide;
    auto* out = static_cast<typename Type::Stored*>(elements);
    const auto* sum = static_cast<const Wide*>(wide);
    if (op != kAvg) {
        for (std::size_t i = 0; i < count; ++i) {
            out[i] = Type::narrow(sum[i]);
        }
        return;
    }
    const Wide divisor = static_cast<Wide>(ranks);
    for (std::size_t i = 0; i < count; ++i) {
        out[i] = Type::narrow(sum[i] / divisor);
    }
}

// Elements of one rank after another are added to wide values, which then become elements again.
struct Row {
    const char* name;
    std::size_t size;
    // wide[i] = wide[i] op elements[i], or elements[i] alone if `first`. A scalar multiplies each.
    void (*fold)(void*, const void*, std::size_t, bool, const void*, int);
    void (*store)(void*, const void*, std::size_t, int, int);
};

template <typename Type> constexpr Row row(const char* name) {
    static_assert(sizeof(typename Type::Wide) <= kWide);
    return {name, sizeof(typename Type::Stored), fold_elements<Type>, store_elements<Type>};
}

// In the order of ncclDataType_t.
constexpr std::array<Row, 12> kTypes = {
    row<Plain<std::int8_t, std::int64_t>>("int8"),
    row<Plain<std::uint8_t, std::uint64_t>>("uint8"),
    row<Plain<std::int32_t, std::int64_t>>("int32"),
    row<Plain<std::uint32_t, std::uint64_t>>("uint32"),
    row<Plain<std::int64_t, std::int64_t>>("int64"),
    row<Plain<std::uint64_t, std::uint64_t>>("uint64"),
    row<Small<std::uint16_t, kHalf>>("float16"),
    row<Plain<float, float>>("float32"),
    row<Plain<double, double>>("float64"),
    row<Small<std::uint16_t, kBrain>>("bfloat16"),
    row<Small<std::uint8_t, kE4m3>>("float8e4m3"),
    row<Small<std::uint8_t, kE5m2>>("float8e5m2"),
};

bool exists(DataType type) {
    return type >= 0 && static_cast<std::size_t>(type) < kTypes.size();
}

} // namespace

std::size_t element_size(DataType type) {
    return exists(type) ? kTypes[type].size : 0;
}

const char* type_name(DataType type) {
    return exists(type) ? kTypes[type].name : "unknown type";
}

const char* operator_name(int op) {
    constexpr std::array<const char*, kNumOps> kNames = {"sum", "prod", "max", "min", "avg"};
    return op >= 0 && op < kNumOps ? kNames[op] : "premulsum";
}

bool fold_ranks(const std::vector<Descriptor>& ranks, std::size_t count, const ReadRank& read,
                std::byte* out) {
    const Descriptor& any = ranks.front();
    const Row& type = kTypes[any.type];
    const std::size_t chunk = std::min<std::size_t>(kChunk, count);
    const std::unique_ptr<std::byte[]> elements(new std::byte[chunk * type.size]);
    const std::unique_ptr<std::byte[]> wide(new std::byte[chunk * kWide]);
    for (std::size_t done = 0; done < count; done += chunk) {
        const std::size_t now = std::min(chunk, count - done);
        for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
            if (!read(rank, done * type.size, elements.get(), now * type.size)) {
                return false;
            }
            const void* scalar = ranks[rank].multiplies ? ranks[rank].scalar : nullptr;
            type.fold(wide.get(), elements.get(), now, rank == 0, scalar, any.op);
        }
        type.store(out + done * type.size, wide.get(), now, any.op, static_cast<int>(ranks.size()));
    }
    return true;
}

} // namespace tracehook::rehearsal::nccl
