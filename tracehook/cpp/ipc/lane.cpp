#include "ipc/lane.h"

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

// How many times a number is looked at between two looks at the clock.
constexpr int kLooks = 32;

void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

} // namespace

// On cache lines of their own: the peer looks at one of them all the time while it waits.
struct Lane::Page {
    alignas(128) std::atomic<std::uint64_t> number;
    alignas(128) std::atomic<std::uint32_t> rests;
    std::atomic<std::uint32_t> has_met; // this page's owner has the other page

    static_assert(
        std::atomic<std::uint64_t>::is_always_lock_free); // or two processes could not share it
};

Lane::Lane(int socket) : socket_(socket) {
    file_ = memfd_create("tracehook-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    // Sealed: else a peer that shrank it would end this process at its next look.
    if (file_ >= 0 && ftruncate(file_, sizeof(Page)) == 0 &&
        fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
        void* const page =
            mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
        if (page != MAP_FAILED) {
            ours_ = static_cast<Page*>(page); // zeroes are what its communicators begin with
            return;
        }
    }
    const int problem = errno;
    if (file_ >= 0) {
        close(file_);
    }
    throw std::system_error(problem, std::generic_category(), "memory for a peer");
}

Lane::~Lane() {
    munmap(ours_, sizeof(Page));
    if (theirs_ != nullptr) {
        munmap(const_cast<Page*>(theirs_), sizeof(Page));
    }
    if (file_ >= 0) {
        close(file_);
    }
}

int Lane::hand_over() noexcept {
    return std::exchange(file_, -1);
}

bool Lane::meet(int file) noexcept {
    struct stat facts{};
    const int seals = fcntl(file, F_GET_SEALS);
    if (theirs_ != nullptr || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        fstat(file, &facts) != 0 || facts.st_size != sizeof(Page)) {
        return false;
    }
    void* const page = mmap(nullptr, sizeof(Page), PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        return false;
    }
    theirs_ = static_cast<const Page*>(page);
    ours_->has_met.store(1, std::memory_order_seq_cst);
    return true;
}

bool Lane::is_met() const noexcept {
    return theirs_ != nullptr && theirs_->has_met.load(std::memory_order_seq_cst) != 0;
}

// Either this sees that the peer rests, or the peer sees the number when it looks once more.
bool Lane::say(std::uint64_t number) noexcept {
    ours_->number.store(number, std::memory_order_seq_cst);
    // If its buffer is full, it is awake.
    return theirs_->rests.load(std::memory_order_seq_cst) == 0 || send(number) || errno == EAGAIN;
}

std::uint64_t Lane::heard() const noexcept {
    return theirs_ == nullptr ? 0 : theirs_->number.load(std::memory_order_seq_cst);
}

bool Lane::wait_for(std::uint64_t number, unsigned microseconds) const noexcept {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    do {
        for (int look = 0; look < kLooks; ++look) {
            if (heard() == number) {
                return true;
            }
            pause();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

void Lane::rest(bool begins) noexcept {
    ours_->rests.store(begins ? 1 : 0, std::memory_order_seq_cst);
}

bool Lane::send(std::uint64_t number) const noexcept {
    const Head head = same(number);
    return ::send(socket_, &head, sizeof head, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof head;
}

Taken Lane::take(std::uint64_t number, std::size_t most) const {
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
        const ssize_t size = recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
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
