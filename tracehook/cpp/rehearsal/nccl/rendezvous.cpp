#include "rendezvous.h"

#include "settings.h"
#include "waiting.h"

#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr long kPatienceNanoseconds = 20'000'000;

} // namespace

// A new file is all zeros, which is a valid empty state of everything below: nobody has to
// construct it first.
struct Rendezvous::LaneMarks {
    std::atomic<std::uint64_t> reached[static_cast<std::size_t>(Mark::kCount)];
    std::byte payload[kPayload];

    std::atomic<std::uint64_t>& at(Mark mark) { return reached[static_cast<std::size_t>(mark)]; }
};

struct Rendezvous::Header {
    std::atomic<std::uint32_t> bell;
    std::atomic<std::uint32_t> ranks;
    std::atomic<std::uint32_t> joined;
    std::byte unused[52];
};

struct Rendezvous::Place {
    std::atomic<std::uint32_t> process;
    std::atomic<std::uint32_t> settled; // what follows may be read
    std::int64_t device;
    std::uint64_t host;
    std::int64_t job_rank;
    std::uint64_t machine;
    LaneMarks lanes[static_cast<std::size_t>(Lane::kCount)];
};

struct Rendezvous::Mailbox {
    std::atomic<std::uint64_t> posted;
    std::atomic<std::uint64_t> taken;
    std::atomic<std::uint64_t> refused;
    std::byte payload[kPayload];
};

Rendezvous::Rendezvous(Key key, int rank, int ranks, Stopped stopped)
    : path_(settings().directory + "/communicator." + key.text()), rank_(rank), ranks_(ranks),
      stopped_(std::move(stopped)) {}

Rendezvous::~Rendezvous() {
    if (header_ != nullptr) {
        if (!complete_) {
            unlink(path_.c_str());
        }
        munmap(header_, bytes());
    }
}

std::size_t Rendezvous::bytes() const {
    const auto ranks = static_cast<std::size_t>(ranks_);
    return sizeof(Header) + ranks * sizeof(Place) + ranks * ranks * sizeof(Mailbox);
}

Rendezvous::Place& Rendezvous::place(int rank) const {
    return reinterpret_cast<Place*>(header_ + 1)[rank];
}

Rendezvous::LaneMarks& Rendezvous::marks(Lane lane, int rank) const {
    return place(rank).lanes[static_cast<std::size_t>(lane)];
}

Rendezvous::Mailbox& Rendezvous::mailbox(int from, int to) const {
    auto* boxes = reinterpret_cast<Mailbox*>(&place(ranks_));
    return boxes[static_cast<std::size_t>(from) * ranks_ + to];
}

std::string Rendezvous::map() {
    ensure_directory();
    const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
        return "cannot open " + path_ + ": " + std::strerror(errno);
    }
    // posix_fallocate only ever grows a file, so ranks that disagree on its size cannot shrink it
    // for one another.
    const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes()));
    void* memory = error != 0 ? MAP_FAILED
                              : mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int reason = error != 0 ? error : errno;
    close(file);
    if (memory == MAP_FAILED) {
        return "cannot map " + path_ + ": " + std::strerror(reason);
    }
    header_ = static_cast<Header*>(memory);
    return "";
}

std::pair<Result, std::string> Rendezvous::join(int device, std::size_t host) {
    if (const std::string error = map(); !error.empty()) {
        return {kSystemError, error};
    }
    std::uint32_t count = 0;
    const auto ranks = static_cast<std::uint32_t>(ranks_);
    if (!header_->ranks.compare_exchange_strong(count, ranks) && count != ranks) {
        return {kInvalidArgument, "rank " + std::to_string(rank_) + " says " +
                                      std::to_string(ranks_) + " ranks, another said " +
                                      std::to_string(count)};
    }
    Place& mine = place(rank_);
    std::uint32_t process = 0;
    if (!mine.process.compare_exchange_strong(process, static_cast<std::uint32_t>(getpid()))) {
        complete_ = true; // the file belongs to whoever came first
        return {kInvalidUsage, "rank " + std::to_string(rank_) + " joined twice"};
    }
    mine.device = device;
    mine.host = host;
    mine.job_rank = settings().rank;
    mine.machine = settings().machine;
    mine.settled = 1;
    if (header_->joined.fetch_add(1) + 1 == ranks) {
        // All have it mapped, and nobody needs the name again: a rank that is killed leaves nothing
        // behind.
        unlink(path_.c_str());
    }
    ring();

    wait([&] { return header_->joined == ranks; });
    complete_ = header_->joined == ranks;
    if (!complete_) {
        return {kInternalError, "aborted while waiting for the other ranks"};
    }
    for (int other = 0; other < ranks_; ++other) {
        if (other != rank_ && place(other).device == device && place(other).host == host) {
            return {kInvalidUsage, "Duplicate GPU detected: rank " + std::to_string(rank_) +
                                       " and rank " + std::to_string(other) +
                                       " are both on CUDA device " + std::to_string(device)};
        }
    }
    return {kSuccess, ""};
}

std::vector<int> Rendezvous::missing() const {
    std::vector<int> found;
    for (int rank = 0; rank < ranks_; ++rank) {
        if (place(rank).settled == 0) {
            found.push_back(rank);
        }
    }
    return found;
}

void Rendezvous::post(Lane lane, std::uint64_t sequence, const void* payload, std::size_t size) {
    LaneMarks& mine = marks(lane, rank_);
    std::memcpy(mine.payload, payload, size);
    mine.at(Mark::kPosted).store(sequence, std::memory_order_release);
    ring();
}

const std::byte* Rendezvous::payload(Lane lane, int rank) const {
    return marks(lane, rank).payload;
}

void Rendezvous::pass(Lane lane, std::uint64_t sequence) {
    marks(lane, rank_).at(Mark::kPassed) = sequence;
    ring();
}

Rendezvous::Member Rendezvous::member(int rank) const {
    const Place& found = place(rank);
    if (found.settled == 0) {
        return {0, -1, 0};
    }
    return {static_cast<int>(found.process.load()), static_cast<int>(found.job_rank),
            found.machine};
}

bool Rendezvous::is_one_machine() const {
    for (int rank = 0; rank < ranks_; ++rank) {
        if (member(rank).machine != settings().machine) {
            return false;
        }
    }
    return true;
}

bool Rendezvous::has_reached(Lane lane, Mark mark, int rank, std::uint64_t sequence) const {
    return marks(lane, rank).at(mark) >= sequence;
}

std::vector<int> Rendezvous::behind(Lane lane, Mark mark, std::uint64_t sequence) const {
    std::vector<int> found;
    for (int rank = 0; rank < ranks_; ++rank) {
        if (!has_reached(lane, mark, rank, sequence)) {
            found.push_back(rank);
        }
    }
    return found;
}

bool Rendezvous::await_all(Lane lane, Mark mark, std::uint64_t sequence) const {
    return wait([&] {
        for (int rank = 0; rank < ranks_; ++rank) {
            if (!has_reached(lane, mark, rank, sequence)) {
                return false;
            }
        }
        return true;
    });
}

bool Rendezvous::may_send(int to, std::uint64_t sequence) const {
    return mailbox(rank_, to).taken + 1 == sequence;
}

void Rendezvous::send(int to, std::uint64_t sequence, const void* payload, std::size_t size) {
    Mailbox& box = mailbox(rank_, to);
    std::memcpy(box.payload, payload, size);
    box.posted = sequence;
    ring();
}

bool Rendezvous::taken(int to, std::uint64_t sequence, bool* refused) const {
    const Mailbox& box = mailbox(rank_, to);
    *refused = box.refused == sequence;
    return box.taken >= sequence;
}

bool Rendezvous::has_arrived(int from, std::uint64_t sequence) const {
    return mailbox(from, rank_).posted >= sequence;
}

const std::byte* Rendezvous::letter(int from) const {
    return mailbox(from, rank_).payload;
}

void Rendezvous::take(int from, std::uint64_t sequence, bool refuse) {
    Mailbox& box = mailbox(from, rank_);
    if (refuse) {
        box.refused = sequence;
    }
    box.taken = sequence;
    ring();
}

void Rendezvous::ring() {
    header_->bell.fetch_add(1);
    syscall(SYS_futex, &header_->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Rendezvous::wait(const std::function<bool()>& ready) const {
    while (true) {
        const std::uint32_t heard = header_->bell;
        if (ready()) {
            return true;
        }
        if (stopped_()) {
            return false;
        }
        if (WaitScope* scope = WaitScope::mine()) {
            scope->tick();
        }
        const timespec patience{0, kPatienceNanoseconds};
        syscall(SYS_futex, &header_->bell, FUTEX_WAIT, heard, &patience, nullptr, 0);
    }
}

} // namespace tracehook::rehearsal::nccl
