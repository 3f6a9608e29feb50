#include "registrar/segment_rules.h"

namespace tracehook::registrar {

namespace {

template <typename Fits>
std::uint16_t bits_of(const std::vector<SegmentRule>& rules, Fits&& fits) noexcept {
    unsigned bits = 0;
    for (std::size_t i = 0; i < rules.size(); ++i) {
        bits |= fits(rules[i]) ? 1U << i : 0U;
    }
    return static_cast<std::uint16_t>(bits);
}

template <typename Kind> bool has(std::uint32_t kinds, Kind kind) noexcept {
    return (kinds >> static_cast<unsigned>(kind) & 1U) != 0;
}

} // namespace

void SegmentRules::set(const std::vector<SegmentRule>& rules) {
    rules_.resize(1);
    for (const SegmentRule& rule : rules) {
        if (rules_.size() < kMost) {
            rules_.push_back(rule);
        }
    }
    of_all_ = bits_of(rules_, [](const SegmentRule& rule) { return !rule.is_of_segments(); });
}

std::uint16_t SegmentRules::that_fit(std::size_t size, MemoryKind memory,
                                     PoolKind pool) const noexcept {
    return bits_of(rules_, [&](const SegmentRule& rule) {
        return has(rule.pools, pool) && has(rule.memories, memory) &&
               (rule.below == 0 || size < rule.below);
    });
}

std::uint16_t SegmentRules::that_spare(const Identity& communicator) const noexcept {
    return bits_of(rules_, [&](const SegmentRule& rule) {
        // The size of one that is still being made may not be known: -1.
        const bool any_size = rule.least_ranks <= 0 && rule.most_ranks == INT_MAX;
        const bool fits_size = communicator.size >= 0 && communicator.size >= rule.least_ranks &&
                               communicator.size <= rule.most_ranks;
        return !(any_size || fits_size) || !(communicator.one_host ? rule.one_host : rule.across);
    });
}

} // namespace tracehook::registrar
