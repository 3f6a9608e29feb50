#include "ipc/same.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sys/socket.h>

namespace tracehook::ipc {

namespace {

struct Head {              // wire._HEAD
    std::uint8_t kind = 2; // wire.Kind.SAME
    std::uint8_t form = 0;
    std::uint16_t count = 0;
    std::uint32_t total = 0;
    std::uint64_t number = 0;
};
static_assert(sizeof(Head) == 16);

constexpr auto kPatience = std::chrono::microseconds(20);

Head same(std::uint64_t number) noexcept {
    Head head;
    head.number = number;
    return head;
}

} // namespace

bool send_same(int socket, std::uint64_t number) noexcept {
    const Head head = same(number);
    return send(socket, &head, sizeof head, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof head;
}

bool take_same(int socket, std::uint64_t number) noexcept {
    const Head wanted = same(number);
    std::array<unsigned char, sizeof(Head) + 1> found{};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (true) {
        const ssize_t size = recv(socket, found.data(), found.size(), MSG_PEEK | MSG_DONTWAIT);
        if (size == sizeof wanted && std::memcmp(found.data(), &wanted, sizeof wanted) == 0) {
            return recv(socket, found.data(), found.size(), MSG_DONTWAIT) == sizeof wanted;
        }
        if (size >= 0 || errno != EAGAIN || std::chrono::steady_clock::now() > deadline) {
            return false;
        }
    }
}

} // namespace tracehook::ipc
