// The shortest message of a link, sent and taken without Python: "the same tensors as last time".
//
// The bytes are those of tracehook/ipc/wire.py, which has all other messages. Any thread, without
// the GIL; one reader of a socket at a time.
#pragma once

#include <cstdint>

namespace tracehook::ipc {

// Whether it went out. If not, nothing was sent: the system's buffer is full, or the peer is gone.
bool send_same(int socket, std::uint64_t number) noexcept;

// Whether it is the next message of the socket, and was taken. It is looked for during some
// microseconds: a peer that is about to send need not wake this thread then. Any other message
// stays.
bool take_same(int socket, std::uint64_t number) noexcept;

} // namespace tracehook::ipc
