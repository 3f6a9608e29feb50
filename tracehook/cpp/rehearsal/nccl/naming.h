// What people and logs call a communicator: the key that tracehook's log gives to it, and the name
// that the program gave.
//
// The key is that of tracehook's own interposer (nccl/key.h), computed from the same calls; so a
// broken rule and a hang are found under the communicator of the log. Any thread.
#pragma once

#include "names.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tracehook::rehearsal::nccl {

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
