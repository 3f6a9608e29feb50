#include "symmetric_memory/host_mailbox.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

namespace tracehook::core {

namespace {

using Clock = std::chrono::steady_clock;
using Word = std::atomic<std::uint32_t>;

// Not the private kind of futex: the other ranks are other processes.
void wait_for_change(const Word& word, std::uint32_t seen, std::chrono::nanoseconds most) noexcept {
    const timespec left{most.count() / 1'000'000'000, most.count() % 1'000'000'000};
    syscall(SYS_futex, &word, FUTEX_WAIT, seen, &left, nullptr, 0);
}

void wake_all(Word& word) noexcept {
    word.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// "THSHARED": by it a later job knows the file, should this one be killed (leftovers.py).
constexpr std::uint64_t kMark = 0x4445524148534854;
static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kWords = HostMailbox::kLongest / sizeof(std::uint64_t);

} // namespace

// Zero, as the file begins, is the number of no round.
struct alignas(64) HostMailbox::Slot {
    std::atomic<std::uint64_t> number;
    std::atomic<std::uint64_t> length;
    // Words and not bytes, because a reader may look while the writer goes on.
    std::atomic<std::uint64_t> words[kWords];

    void write(std::uint64_t round, std::string_view text) noexcept {
        if (number.load(std::memory_order_relaxed) >= round) {
            return;
        }
        if (text.size() > kLongest) {
            text = {};
        }
        number.store(0, std::memory_order_relaxed);
        // Each released, so that whoever sees one of them sees the zero as well.
        length.store(text.size(), std::memory_order_release);
        for (std::size_t at = 0; at < text.size(); at += sizeof(std::uint64_t)) {
            std::uint64_t word = 0;
            std::memcpy(&word, text.data() + at, std::min(sizeof(word), text.size() - at));
            words[at / sizeof(word)].store(word, std::memory_order_release);
        }
        number.store(round, std::memory_order_release);
    }

    std::optional<std::string> read(std::uint64_t round) const {
        if (number.load(std::memory_order_acquire) != round) {
            return std::nullopt;
        }
        std::string text(std::min<std::size_t>(length.load(std::memory_order_acquire), kLongest),
                         '\0');
        for (std::size_t at = 0; at < text.size(); at += sizeof(std::uint64_t)) {
            const std::uint64_t word = words[at / sizeof(word)].load(std::memory_order_acquire);
            std::memcpy(text.data() + at, &word, std::min(sizeof(word), text.size() - at));
        }
        return number.load(std::memory_order_relaxed) == round ? std::optional(std::move(text))
                                                               : std::nullopt;
    }
};

struct HostMailbox::Page {
    std::atomic<std::uint64_t> mark; // all ranks write the same
    Word opened;                     // ranks that have opened it
    Word posts;                      // grows with each post
    Word publishes; // grows with each text for all, and with each round that is given up
    std::atomic<std::uint64_t>
        given_up; // the newest round for which the posts did not come together
    Slot for_all;

    Slot* slots() noexcept { return reinterpret_cast<Slot*>(this + 1); }
    static std::size_t bytes(std::size_t ranks) noexcept {
        return sizeof(Page) + ranks * sizeof(Slot);
    }
};

HostMailbox::HostMailbox(std::string path, std::size_t ranks, std::size_t own)
    : path_(std::move(path)), ranks_(ranks), own_(own) {
    const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    int failure = file < 0 ? errno : 0;
    if (failure == 0) {
        // Memory that is promised and not there would be SIGBUS at the first write.
        failure = posix_fallocate(file, 0, static_cast<off_t>(Page::bytes(ranks)));
    }
    void* base = MAP_FAILED;
    if (failure == 0) {
        base = mmap(nullptr, Page::bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        failure = base == MAP_FAILED ? errno : 0;
    }
    if (file >= 0) {
        ::close(file);
    }
    if (failure != 0) {
        unlink(path_.c_str());
        throw std::system_error(failure, std::generic_category(), path_);
    }
    page_ = static_cast<Page*>(base); // the kernel's zeros are its state at the beginning
    page_->mark.store(kMark, std::memory_order_relaxed);
    if (page_->opened.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
        unlink(path_.c_str());
    }
}

HostMailbox::~HostMailbox() {
    if (!is_complete()) {
        unlink(path_.c_str());
    }
    munmap(page_, Page::bytes(ranks_));
}

bool HostMailbox::is_complete() const noexcept {
    return page_->opened.load(std::memory_order_acquire) >= ranks_;
}

HostMailbox::Slot& HostMailbox::slot(std::size_t rank) const noexcept {
    return page_->slots()[rank];
}

void HostMailbox::post(std::uint64_t number, std::string_view text) {
    const std::lock_guard guard(writing_);
    slot(own_).write(number, text);
    wake_all(page_->posts);
}

std::vector<std::string> HostMailbox::gather(std::uint64_t number,
                                             std::chrono::nanoseconds patience) {
    const auto deadline = Clock::now() + patience;
    std::vector<std::string> texts;
    while (true) {
        const std::uint32_t seen = page_->posts.load(std::memory_order_acquire);
        while (texts.size() < ranks_) {
            auto text = slot(texts.size()).read(number);
            if (!text) {
                break;
            }
            texts.push_back(std::move(*text));
        }
        const auto left = deadline - Clock::now();
        if (texts.size() == ranks_) {
            return texts;
        }
        const bool is_over = slot(texts.size()).number.load(std::memory_order_acquire) > number;
        if (is_over || left <= left.zero()) {
            page_->given_up.store(number, std::memory_order_release);
            wake_all(page_->publishes);
            return {};
        }
        wait_for_change(page_->posts, seen, left);
    }
}

void HostMailbox::publish(std::uint64_t number, std::string_view text) {
    const std::lock_guard guard(writing_);
    page_->for_all.write(number, text);
    wake_all(page_->publishes);
}

std::optional<std::string> HostMailbox::published(std::uint64_t number,
                                                  std::chrono::nanoseconds patience) const {
    const auto deadline = Clock::now() + patience;
    while (true) {
        const std::uint32_t seen = page_->publishes.load(std::memory_order_acquire);
        if (auto text = page_->for_all.read(number)) {
            return text;
        }
        const auto left = deadline - Clock::now();
        const bool is_over = page_->for_all.number.load(std::memory_order_acquire) > number ||
                             page_->given_up.load(std::memory_order_acquire) >= number;
        if (is_over || left <= left.zero()) {
            return std::nullopt;
        }
        wait_for_change(page_->publishes, seen, left);
    }
}

} // namespace tracehook::core
