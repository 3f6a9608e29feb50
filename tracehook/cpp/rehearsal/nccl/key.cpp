#include "key.h"

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

} // namespace

Key Key::of(std::string_view bytes) {
    return {mix(0xcbf29ce484222325ULL, bytes), mix(0x9e3779b97f4a7c15ULL, bytes)};
}

Key Key::child(std::string_view role, std::uint64_t count, std::string_view detail) const {
    return of(text() + "/" + std::string(role) + "/" + std::to_string(count) + "/" +
              std::string(detail));
}

std::string Key::text() const {
    char buffer[33];
    std::snprintf(buffer, sizeof buffer, "%016llx%016llx", static_cast<unsigned long long>(high),
                  static_cast<unsigned long long>(low));
    return buffer;
}

} // namespace tracehook::rehearsal::nccl
