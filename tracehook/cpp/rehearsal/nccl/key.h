// The name of a communicator, equal on all its ranks: from the unique id, or from the parent and
// how it was made.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace tracehook::rehearsal::nccl {

struct Key {
    std::uint64_t high = 0;
    std::uint64_t low = 0;

    static Key of(std::string_view bytes);
    // The key of a child: what `role` made of this communicator for the `count`th time.
    Key child(std::string_view role, std::uint64_t count, std::string_view detail) const;
    std::string text() const;
    auto operator<=>(const Key&) const = default;
};

} // namespace tracehook::rehearsal::nccl
