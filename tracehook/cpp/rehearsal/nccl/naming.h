// How communicators are named. A Key is equal on all ranks: from the unique id, or from the parent
// and how the communicator was made. A Name is what people and logs call it: the key that
// tracehook's log gives to it, and the name that the program gave.
//
// The key in a Name is that of tracehook's own interposer (nccl/key.h), computed from the same
// calls; so a broken rule and a hang are found under the communicator of the log. Any thread.
#pragma once

#include "names.h"

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

struct Name {
    std::uint64_t key = 0;
    std::string given; // ncclConfig_t's commName; empty: none
};

// `bytes`: those of all unique ids.
Name name_of(std::string_view bytes, const Config* config);
// Of a child, of which `count` others were made before.
Name name_of_child(const Name& parent, std::string_view kind, std::int64_t colour,
                   std::uint64_t count, const Config* config);

// 16 hexadecimal digits, as in a log; "" for 0.
std::string key_text(std::uint64_t key);

// As it stands between the quotes of a text in JSON, on one line.
std::string escaped(const std::string& text);

} // namespace tracehook::rehearsal::nccl
