// What a version of NCCL does and does not do; the table is traits.def. Any thread, no state.
#pragma once

#include <cstddef>

namespace tracehook::nccl {

inline constexpr int kAlways = 0x7fffffff;

enum class Trait {
#define TRAIT(enumerator, first, end, sentence) enumerator,
#include "nccl/traits.def"
#undef TRAIT
};

struct TraitRow {
    int first;
    int end;
};

inline constexpr TraitRow kTraits[] = {
#define TRAIT(enumerator, first, end, sentence) {first, end},
#include "nccl/traits.def"
#undef TRAIT
};

constexpr bool has(Trait trait, int version) noexcept {
    const TraitRow& row = kTraits[static_cast<std::size_t>(trait)];
    return row.first <= version && version < row.end;
}

} // namespace tracehook::nccl
