#include "events/ring.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <memory>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tracehook::events {

namespace {

constexpr std::size_t kPage = 4096; // of the header alone
static_assert(sizeof(RingHeader) <= kPage);

// Pages are there from the beginning: a push() in the allocator's callback must not be the one that
// faults them in.
constexpr int kMapped = MAP_POPULATE;
constexpr int kTries = 100; // to get the file's blocks: a signal may end each

std::uint64_t clock_ns(clockid_t clock) noexcept {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ULL +
           static_cast<std::uint64_t>(now.tv_nsec);
}

thread_local std::uint32_t own_id = 0; // constant-initialised: no guard to test at each call

std::uint32_t thread_id() noexcept {
    if (own_id == 0) {
        // The one thread of a forked child inherits the variable, but not the id.
        static const int registered = pthread_atfork(nullptr, nullptr, [] { own_id = 0; });
        static_cast<void>(registered);
        own_id = static_cast<std::uint32_t>(syscall(SYS_gettid));
    }
    return own_id;
}

} // namespace

std::uint64_t monotonic_ns() noexcept {
    return clock_ns(CLOCK_MONOTONIC);
}

Ring::Ring(const std::string& path, std::size_t capacity, std::size_t call_slots) : path_(path) {
    const std::size_t header_bytes = kPage + call_slots * sizeof(CallSlot);
    const std::size_t bytes = header_bytes + capacity * sizeof(Event);
    if (path_.empty() || !map_file(bytes)) {
        map_memory(bytes);
    }
    std::memcpy(header_->magic, "THRING02", 8);
    header_->header_bytes = static_cast<std::uint32_t>(header_bytes);
    header_->record_bytes = sizeof(Event);
    header_->capacity = capacity;
    // Code that keeps the GIL from the first moment on lets the consumer never look.
    header_->looked_ns.store(monotonic_ns(), std::memory_order_relaxed);
    header_->epoch_ns = clock_ns(CLOCK_REALTIME) - monotonic_ns();
    header_->pid = static_cast<std::uint64_t>(getpid());
    header_->call_slots = static_cast<std::uint32_t>(call_slots);
    header_->call_slot_bytes = sizeof(CallSlot);
    auto* const slots = reinterpret_cast<CallSlot*>(reinterpret_cast<char*>(header_) + kPage);
    std::uninitialized_value_construct_n(slots, call_slots);
    calls_ = CallTable({slots, call_slots});
    records_ = reinterpret_cast<Event*>(reinterpret_cast<char*>(header_) + header_bytes);
}

void Ring::mapped(void* base, std::size_t bytes) {
    mapping_ = {base, [bytes](void* start) { munmap(start, bytes); }};
    header_ = new (base) RingHeader{};
}

std::shared_ptr<CallSlot> Ring::take_calls(const CallSlot::Owner& owner) {
    CallSlot* const slot = calls_.take(owner);
    if (slot == nullptr) {
        return nullptr;
    }
    return {slot, [mapping = mapping_, owner = getpid()](CallSlot* gone) {
                if (getpid() ==
                    owner) { // a child has the same mapping, and the slot is not its own
                    gone->let_go();
                }
            }};
}

std::shared_ptr<CallSlot> Ring::announce(const CallSlot::Birth& birth) {
    CallSlot* const slot = calls_.announce(birth);
    if (slot == nullptr) {
        return nullptr;
    }
    return {slot, [mapping = mapping_, owner = getpid()](CallSlot* made) {
                if (getpid() == owner) {
                    made->born();
                }
            }};
}

bool Ring::map_file(std::size_t bytes) {
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int failure = fd < 0 ? errno : EINTR;
    for (int tries = 0; failure == EINTR && tries < kTries; ++tries) { // signals of the program
        failure = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    }
    void* base = MAP_FAILED;
    if (failure == 0) {
        base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kMapped | MAP_SHARED, fd, 0);
        failure = base == MAP_FAILED ? errno : 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    if (failure != 0) {
        if (fd >= 0) {
            unlink(path_.c_str());
        }
        error_ = path_ + ": " + std::strerror(failure);
        path_.clear();
        return false;
    }
    mapped(base, bytes);
    return true;
}

void Ring::map_memory(std::size_t bytes) {
    void* base =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kMapped | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        throw std::bad_alloc();
    }
    mapped(base, bytes);
}

void Ring::push(const Event& event) noexcept {
    if (abandoned_.load(std::memory_order_relaxed)) {
        return;
    }
    const std::uint64_t t_ns = event.t_ns != 0 ? event.t_ns : monotonic_ns();
    const std::uint32_t thread = thread_id();
    const std::lock_guard guard(mutex_);
    // The number is given even to an event that is dropped, so that the log shows the gap where it
    // happened.
    const std::uint64_t seq = ++seq_;
    const std::uint64_t pushed = header_->pushed.load(std::memory_order_relaxed);
    if (pushed - header_->drained.load(std::memory_order_acquire) >= header_->capacity) {
        header_->dropped.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    Event& record = records_[pushed % header_->capacity];
    record = event;
    record.seq = seq;
    record.t_ns = t_ns;
    record.thread = thread;
    // Written last: of what is below it no record is half written. A reader of a living process
    // must look at `drained` again afterwards, since a record below that may be overwritten.
    header_->pushed.store(pushed + 1, std::memory_order_release);
}

constexpr std::uint64_t kStoodStillNs = 2'000'000'000; // the log's thread looks ten times a second

void Ring::note_signal(int signal, int sender) noexcept {
    if (abandoned_.load(std::memory_order_relaxed) ||
        header_->pid != static_cast<std::uint64_t>(getpid())) {
        return;
    }
    const std::uint64_t now_ns = monotonic_ns();
    const std::uint64_t looked = looked_ns();
    // If the log's thread stood still for long, so did the program: it called nothing since.
    calls_.look(now_ns - looked > kStoodStillNs ? looked : now_ns);
    header_->sender.store(sender, std::memory_order_relaxed);
    header_->signal_ns.store(now_ns, std::memory_order_relaxed);
    header_->signal.store(static_cast<std::uint32_t>(signal), std::memory_order_release);
}

void Ring::leave_words(std::string_view words) noexcept {
    if (abandoned_.load(std::memory_order_relaxed) || words.size() > sizeof header_->words ||
        header_->words_bytes.load(std::memory_order_relaxed) != 0) {
        return;
    }
    std::memcpy(header_->words, words.data(), words.size());
    header_->words_bytes.store(static_cast<std::uint32_t>(words.size()), std::memory_order_release);
}

std::size_t Ring::peek(std::span<Event> out, std::size_t skip) noexcept {
    if (abandoned_.load(std::memory_order_relaxed)) {
        return 0;
    }
    const std::uint64_t now_ns = monotonic_ns();
    header_->epoch_ns.store(clock_ns(CLOCK_REALTIME) - now_ns, std::memory_order_relaxed);
    header_->looked_ns.store(now_ns, std::memory_order_relaxed);
    calls_.look(now_ns);
    const std::uint64_t first = header_->drained.load(std::memory_order_relaxed) + skip;
    const std::uint64_t pushed = header_->pushed.load(std::memory_order_acquire);
    const std::uint64_t available = pushed > first ? pushed - first : 0;
    const std::size_t count =
        available < out.size() ? static_cast<std::size_t>(available) : out.size();
    for (std::size_t i = 0; i < count; ++i) {
        out[i] = records_[(first + i) % header_->capacity];
    }
    return count;
}

void Ring::mark_drained(std::size_t count) noexcept {
    if (!abandoned_.load(std::memory_order_relaxed)) {
        header_->drained.fetch_add(count, std::memory_order_release);
    }
}

void Ring::let_go(std::size_t count) noexcept {
    if (!abandoned_.load(std::memory_order_relaxed)) {
        header_->dropped.fetch_add(count, std::memory_order_relaxed);
        mark_drained(count);
    }
}

void Ring::stop_log(int error) noexcept {
    if (!abandoned_.load(std::memory_order_relaxed)) {
        header_->log_stopped_ns.store(monotonic_ns(), std::memory_order_relaxed);
        header_->log_error.store(error, std::memory_order_release);
    }
}

void Ring::end_stopped_log() noexcept {
    if (!abandoned_.load(std::memory_order_relaxed)) {
        header_->log_ended.store(1, std::memory_order_release);
    }
}

void Ring::remove_file() noexcept {
    if (!path_.empty() && !abandoned_.load(std::memory_order_relaxed)) {
        unlink(path_.c_str());
        path_.clear();
    }
}

} // namespace tracehook::events
