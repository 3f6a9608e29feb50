// Where the ranks of one communicator meet: one file, mapped by every rank, with a place for each.
//
// A *lane* is a sequence of exchanges in which all ranks take part: each posts a payload for
// exchange k, waits for all, reads theirs, and passes; nobody posts k + 1 before all have passed k.
// The stream lane belongs to whatever thread runs the communicator's work, the host lane and the
// other two to the one that calls into it: one thread per lane and rank. A *mailbox* goes from
// one rank to one other: the sender posts the k-th payload, the receiver takes it.
//
// Every wait ends within 20 ms of `stopped` becoming true and then returns false. A rank that was
// killed is not noticed: the others wait for it, as they do on hardware. Nothing here takes a
// lock after join(), and nothing but what returns a vector allocates or throws.
#pragma once

#include "names.h"
#include "naming.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tracehook::rehearsal::nccl {

enum class Lane { kStream, kHost, kWindow, kDevice, kCount };

// How far a rank is in an exchange.
enum class Mark { kPosted, kPassed, kCount };

inline constexpr std::size_t kPayload = 128;

class Rendezvous {
  public:
    using Stopped = std::function<bool()>;

    Rendezvous(Key key, int rank, int ranks, Stopped stopped);
    ~Rendezvous();
    Rendezvous(const Rendezvous&) = delete;
    Rendezvous& operator=(const Rendezvous&) = delete;

    // Returns when all ranks have come, or with an error and its text; like NCCL it waits for ever.
    // `device` and `host` are for the others.
    std::pair<Result, std::string> join(int device, std::size_t host);
    // Who has not come to join() yet.
    std::vector<int> missing() const;

    void post(Lane lane, std::uint64_t sequence, const void* payload, std::size_t size);
    bool await_posted(Lane lane, std::uint64_t sequence) const {
        return await_all(lane, Mark::kPosted, sequence);
    }
    // What the ranks posted, in their order, as it was given to post().
    template <typename Payload> std::vector<Payload> payloads(Lane lane) const {
        std::vector<Payload> all(static_cast<std::size_t>(ranks_));
        for (int rank = 0; rank < ranks_; ++rank) {
            std::memcpy(&all[rank], payload(lane, rank), sizeof(Payload));
        }
        return all;
    }
    void pass(Lane lane, std::uint64_t sequence);
    bool await_passed(Lane lane, std::uint64_t sequence) const {
        return await_all(lane, Mark::kPassed, sequence);
    }
    // Who a rank is: its process (0: it has not come to join() yet, and nothing is known of it),
    // its rank in the job (-1: it has none), and its emulated host.
    struct Member {
        int process;
        int rank;
        std::uint64_t machine;
    };
    Member member(int rank) const;
    // Whether all ranks are on the emulated host of this one, so that each can map all memory.
    bool is_one_machine() const;

    // Without waiting, for those who do not wait for ever: whether a rank is so far, and who is
    // not.
    bool has_reached(Lane lane, Mark mark, int rank, std::uint64_t sequence) const;
    std::vector<int> behind(Lane lane, Mark mark, std::uint64_t sequence) const;

    // `sequence` counts from 1. Sender's side, then receiver's side.
    bool may_send(int to, std::uint64_t sequence) const;
    void send(int to, std::uint64_t sequence, const void* payload, std::size_t size);
    bool taken(int to, std::uint64_t sequence, bool* refused) const;
    bool has_arrived(int from, std::uint64_t sequence) const;
    const std::byte* letter(int from) const;
    void take(int from, std::uint64_t sequence, bool refuse);

    // Wakes everyone who waits, on every rank.
    void ring();
    // Waits until `ready` is true; it is asked again after every ring(). False if stopped.
    bool wait(const std::function<bool()>& ready) const;

  private:
    struct Header;
    struct LaneMarks;
    struct Place;
    struct Mailbox;

    std::size_t bytes() const;
    Place& place(int rank) const;
    LaneMarks& marks(Lane lane, int rank) const;
    const std::byte* payload(Lane lane, int rank) const;
    Mailbox& mailbox(int from, int to) const;
    std::string map();
    bool await_all(Lane lane, Mark mark, std::uint64_t sequence) const;

    std::string path_;
    int rank_;
    int ranks_;
    Stopped stopped_;
    Header* header_ = nullptr;
    bool complete_ = false;
};

} // namespace tracehook::rehearsal::nccl
