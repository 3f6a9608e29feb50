#include "naming.h"

#include "nccl/key.h"

#include <cstddef>
#include <cstdio>

namespace tracehook::rehearsal::nccl {

namespace {

std::string given_in(const Config* config) {
    const bool has_name =
        config != nullptr && config->size >= offsetof(Config, comm_name) + sizeof config->comm_name;
    return has_name && config->comm_name != nullptr ? config->comm_name : "";
}

} // namespace

Name name_of(std::string_view bytes, const Config* config) {
    return {key_of_name(bytes), given_in(config)};
}

Name name_of_child(const Name& parent, std::string_view kind, std::int64_t colour,
                   std::uint64_t count, const Config* config) {
    return {key_of_child(parent.key, kind, colour, count), given_in(config)};
}

std::string key_text(std::uint64_t key) {
    if (key == 0) {
        return "";
    }
    char buffer[17];
    std::snprintf(buffer, sizeof buffer, "%016llx", static_cast<unsigned long long>(key));
    return buffer;
}

std::string escaped(const std::string& text) {
    std::string result;
    for (const char letter : text) {
        if (letter == '"' || letter == '\\') {
            result += '\\';
        }
        result += letter < ' ' && letter >= 0 ? ' ' : letter;
    }
    return result;
}

} // namespace tracehook::rehearsal::nccl
