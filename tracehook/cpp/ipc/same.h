// The shortest message of a link, sent and taken without Python: "the same tensors as last time".
//
// The bytes are those of tracehook/ipc/wire.py, which has all other messages. Any thread, without
// the GIL; one reader of a socket at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tracehook::ipc {

// What the next packet of a socket was. If it was another message, that has been taken too: its
// bytes, and the descriptors that came beside it, which are the caller's to close.
struct Taken {
    bool is_same = false;
    std::vector<char> other;
    std::vector<int> files;
};

// Whether it went out. If not, nothing was sent: the system's buffer is full, or the peer is gone.
bool send_same(int socket, std::uint64_t number) noexcept;

// Waits some microseconds for the next packet: a peer that is about to send need not wake this
// thread then. `most` is the size of the largest message.
Taken take_same(int socket, std::uint64_t number, std::size_t most);

} // namespace tracehook::ipc
