// The head of each message between two peers but the first. tracehook/ipc/wire.py, which has all
// messages, packs and unpacks it by the format that the bindings make of these fields.
#pragma once

#include <cstdint>

namespace tracehook::ipc {

// The fields in their order, without padding between them.
#define TRACEHOOK_MESSAGE_HEAD(FIELD)                                                              \
    FIELD(std::uint8_t, kind)                                                                      \
    FIELD(std::uint8_t, form)                                                                      \
    FIELD(std::uint16_t, parts)                                                                    \
    FIELD(std::uint32_t, total)                                                                    \
    FIELD(std::uint64_t, number)

struct MessageHead {
#define FIELD(type, name) type name = 0;
    TRACEHOOK_MESSAGE_HEAD(FIELD)
#undef FIELD
};

#define SIZE(type, name) +sizeof(type)
static_assert(sizeof(MessageHead) == 0 TRACEHOOK_MESSAGE_HEAD(SIZE));
#undef SIZE

} // namespace tracehook::ipc
