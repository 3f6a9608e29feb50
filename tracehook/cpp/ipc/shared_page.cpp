#include "ipc/shared_page.h"

#include "ipc/message_head.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tracehook::ipc {

namespace {

constexpr auto kPatience = std::chrono::microseconds(20);
constexpr std::size_t kMostFiles = 253; // SCM_MAX_FD

MessageHead same(std::uint8_t kind, std::uint64_t number) noexcept {
    MessageHead head;
    head.kind = kind;
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

// How many times a number is looked at between two looks at the clock.
constexpr int kLooks = 32;

void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

} // namespace

// On cache lines of their own: the peer looks at one of them all the time while it waits.
struct SharedPage::Page {
    alignas(128) std::atomic<std::uint64_t> number;
    alignas(128) std::atomic<std::uint32_t> sleeps;
    std::atomic<std::uint32_t> has_mapped; // this page's owner has mapped the other page

    static_assert(
        std::atomic<std::uint64_t>::is_always_lock_free); // or two processes could not share it
};

SharedPage::SharedPage(int socket, std::uint8_t kind) : socket_(socket), kind_(kind) {
    file_ = memfd_create("tracehook-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    // Sealed: else a peer that shrank it would end this process at its next look.
    if (file_ >= 0 && ftruncate(file_, sizeof(Page)) == 0 &&
        fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
        void* const page =
            mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
        if (page != MAP_FAILED) {
            own_ = static_cast<Page*>(page); // its fields begin as zeroes
            return;
        }
    }
    const int problem = errno;
    if (file_ >= 0) {
        close(file_);
    }
    throw std::system_error(problem, std::generic_category(), "memory for a peer");
}

SharedPage::~SharedPage() {
    munmap(own_, sizeof(Page));
    if (peer_ != nullptr) {
        munmap(const_cast<Page*>(peer_), sizeof(Page));
    }
    if (file_ >= 0) {
        close(file_);
    }
}

int SharedPage::take_file() noexcept {
    return std::exchange(file_, -1);
}

bool SharedPage::map_peer(int file) noexcept {
    struct stat facts{};
    const int seals = fcntl(file, F_GET_SEALS);
    if (peer_ != nullptr || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file, &facts) != 0 ||
        facts.st_size != sizeof(Page)) {
        return false;
    }
    void* const page = mmap(nullptr, sizeof(Page), PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        return false;
    }
    peer_ = static_cast<const Page*>(page);
    own_->has_mapped.store(1, std::memory_order_seq_cst);
    return true;
}

bool SharedPage::is_mapped_by_both() const noexcept {
    return peer_ != nullptr && peer_->has_mapped.load(std::memory_order_seq_cst) != 0;
}

// Either this sees that the peer sleeps, or the peer sees the number when it looks once more.
bool SharedPage::write(std::uint64_t number) noexcept {
    own_->number.store(number, std::memory_order_seq_cst);
    // If its buffer is full, it is awake.
    return peer_->sleeps.load(std::memory_order_seq_cst) == 0 || send_packet(number) ||
           errno == EAGAIN;
}

std::uint64_t SharedPage::peer_number() const noexcept {
    return peer_ == nullptr ? 0 : peer_->number.load(std::memory_order_seq_cst);
}

bool SharedPage::wait_for(std::uint64_t number, unsigned microseconds) const noexcept {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    do {
        for (int look = 0; look < kLooks; ++look) {
            if (peer_number() == number) {
                return true;
            }
            pause();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

void SharedPage::set_sleeping(bool sleeps) noexcept {
    own_->sleeps.store(sleeps ? 1 : 0, std::memory_order_seq_cst);
}

bool SharedPage::send_packet(std::uint64_t number) const noexcept {
    const MessageHead head = same(kind_, number);
    return ::send(socket_, &head, sizeof head, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof head;
}

Packet SharedPage::receive_packet(std::uint64_t number, std::size_t most) const {
    thread_local std::vector<char> bytes;
    bytes.resize(most);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFiles * sizeof(int))> beside;
    iovec part{bytes.data(), bytes.size()};
    const MessageHead wanted = same(kind_, number);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (true) {
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = beside.data();
        message.msg_controllen = beside.size();
        const ssize_t size = recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (size == sizeof wanted && std::memcmp(bytes.data(), &wanted, sizeof wanted) == 0) {
            return {true, {}, {}};
        }
        if (size > 0) {
            return {false, {bytes.data(), bytes.data() + size}, files_beside(message)};
        }
        // Whoever reads next finds the end of the peer again, and raises.
        if (size == 0 || errno != EAGAIN || std::chrono::steady_clock::now() > deadline) {
            return {};
        }
    }
}

} // namespace tracehook::ipc
