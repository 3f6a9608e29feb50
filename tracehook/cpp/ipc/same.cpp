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
constexpr std::size_t kMostFiles = 253; // SCM_MAX_FD

Head same(std::uint64_t number) noexcept {
    Head head;
    head.number = number;
    return head;
}

std::vector<int> files_beside(msghdr& message) {
    std::vector<int> files;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
         part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            const std::size_t before = files.size();
            files.resize(before + count);
            std::memcpy(files.data() + before, CMSG_DATA(part), count * sizeof(int));
        }
    }
    return files;
}

} // namespace

bool send_same(int socket, std::uint64_t number) noexcept {
    const Head head = same(number);
    return send(socket, &head, sizeof head, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof head;
}

Taken take_same(int socket, std::uint64_t number, std::size_t most) {
    thread_local std::vector<char> bytes;
    bytes.resize(most);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFiles * sizeof(int))> beside;
    iovec part{bytes.data(), bytes.size()};
    const Head wanted = same(number);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (true) {
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = beside.data();
        message.msg_controllen = beside.size();
        const ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (size == sizeof wanted && std::memcmp(bytes.data(), &wanted, sizeof wanted) == 0) {
            return {true, {}, {}};
        }
        if (size > 0) {
            return {false, {bytes.data(), bytes.data() + size}, files_beside(message)};
        }
        // The end of the peer is found again, and said, by whoever reads next.
        if (size == 0 || errno != EAGAIN || std::chrono::steady_clock::now() > deadline) {
            return {};
        }
    }
}

} // namespace tracehook::ipc
