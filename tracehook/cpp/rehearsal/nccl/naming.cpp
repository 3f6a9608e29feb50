#include "naming.h"

#include "nccl/key.h"

#include <cstddef>
#include <cstdio>

namespace tracehook::rehearsal::nccl {
namespace {

std::uint64_t mix(std::uint64_t seed, std::string_view bytes) {
    std::uint64_t hash = seed;
    for (const char byte : bytes) {
        hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
        hash ^= hash >> 29;
    }
    return hash;
}

std::string hexadecimal(std::uint64_t number) {
    char buffer[17];
    std::snprintf(buffer, sizeof buffer, "%016llx", static_cast<unsigned long long>(number));
    return buffer;
}

std::string given_in(const Config* config) {
    const bool has_name =
        config != nullptr && config->size >= offsetof(Config, comm_name) + sizeof config->comm_name;
    return has_name && config->comm_name != nullptr ? config->comm_name : "";
}

} // namespace

Key Key::of(std::string_view bytes) {
    return {mix(0xcbf29ce484222325ULL, bytes), mix(0x9e3779b97f4a7c15ULL, bytes)};
}

Key Key::child(std::string_view role, std::uint64_t count, std::string_view detail) const {
    return of(text() + "/" + std::string(role) + "/" + std::to_string(count) + "/" +
              std::string(detail));
}

std::string Key::text() const {
    return hexadecimal(high) + hexadecimal(low);
}

Name name_of(std::string_view bytes, const Config* config) {
    return {key_of_name(bytes), given_in(config)};
}

Name name_of_child(const Name& parent, std::string_view kind, std::int64_t colour,
                   std::uint64_t count, const Config* config) {
    return {key_of_child(parent.key, kind, colour, count), given_in(config)};
}

std::string key_text(std::uint64_t key) {
    return key == 0 ? "" : hexadecimal(key);
}

std::string escaped(const std::string& text) {
    std::string result;
    for (const char letter : text) {
        if (letter == '"' || letter == '\\') {
            result += '\\';
        }
        result += static_cast<unsigned char>(letter) < ' ' ? ' ' : letter;
    }
    return result;
}

} // namespace tracehook::rehearsal::nccl
