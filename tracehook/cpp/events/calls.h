// What each communicator was called for, in the ring's file: who reads it after a kill knows which
// call of which communicator this process had come to.
//
// One slot for each live communicator, and for each that is being made: NCCL waits there for the
// other ranks. Only the thread inside the communicator's gate counts into it, with plain stores, so
// a slot has one writer at a time. The log's thread notes when a count last moved (no clock is read
// for a call), and writes the slot into the log when its communicator has ended. Another process
// may read at any time: `log/calls.py` knows the same layout.
#pragma once

#include "events/tally.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace tracehook::events {

// One call. 32 bytes.
struct CallRecord {
    std::uint64_t count = 0; // elements, as the program gave them
    // Of this collective and all before it on the communicator; of peers' calls the stream.
    std::uint64_t digest = 0;
    std::uint32_t order = 0; // counts the calls of the process; calls of two threads may share one
    std::uint32_t what = 0;  // operation, type << 8, reduction << 16
    std::int32_t root = -1;  // or the peer
    std::uint32_t place = 0; // see placed(); 0: not known
};
static_assert(sizeof(CallRecord) == 32, "the ring's file format depends on it");

// `group`: the number of the ncclGroupStart that a call is inside, 0 for none; it begins again
// after very many. The lowest byte says that it is known.
constexpr std::uint32_t placed(std::uint32_t group) noexcept {
    return 1 | group << 8;
}
// Of `place`: no device has come to it (nccl/marks.h); nor to calls so far before it that nobody
// knows where it stands.
constexpr std::uint32_t kAhead = 2;
constexpr std::uint32_t kFarAhead = 4;

enum class CallSlotState : std::uint32_t {
    kFree,
    kTaken, // not begun yet
    kLive,
    kEnded, // its communicator has ended, but a thread may still come out of a call
    kGone,  // nobody can write to it any more
    kBorn,  // its communicator is being made: a call of NCCL waits for all ranks
};

class CallSlot {
  public:
    static constexpr std::size_t kCollectives = 256; // that are remembered
    static constexpr std::size_t kTransfers = 128;
    static constexpr std::size_t kPeers = 64; // with other numbers modulo this; else `crowded`

    // Each by the thread inside the gate: before the call goes to NCCL, and after it has come back.
    CallRecord& collective_begins(std::uint32_t what, std::uint64_t count, std::int32_t root,
                                  std::uint32_t place = 0) noexcept {
        const std::uint64_t number = collectives_.load(std::memory_order_relaxed);
        digest_ = mixed(mixed(digest_ ^ what, count), static_cast<std::uint32_t>(root));
        CallRecord& made = last_[number % kCollectives];
        made = {count, digest_, next_order(), what, root, place};
        collectives_.store(number + 1, std::memory_order_release);
        return made;
    }
    void collective_returned() noexcept { add_one(collectives_returned_); }
    // `stream`: on which a call of a group of peers waits; 0: the default stream.
    CallRecord& transfer_begins(std::uint32_t what, std::uint64_t count, std::int32_t peer,
                                bool sends, std::uint32_t place = 0,
                                std::uint64_t stream = 0) noexcept;
    void transfer_returned() noexcept { add_one(transfers_returned_); }
    // A transfer that cannot be counted: who reads the slot relies on no number of this rank.
    void transfer_uncounted() noexcept {
        crowded_.store(crowded_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    // NCCL has taken in a collective, alone or at the end of its group.
    void tally(std::uint64_t kind, std::uint64_t nbytes) noexcept { tally_.add(kind, nbytes); }
    // Any thread: what NCCL's path depends on besides the call (`log/tallies.py` packs it); 0:
    // nothing is known.
    void surrounded_by(std::uint64_t packed) noexcept {
        surroundings_.store(packed, std::memory_order_relaxed);
    }

    struct Owner {
        std::uint64_t key;
        std::uint32_t comm_id;
        std::int32_t rank;
        std::int32_t size;
        bool adopted; // it had made calls before it was found
    };
    void begin(const Owner& owner, std::uint64_t now_ns) noexcept;

    // What is known of a communicator before NCCL makes it. `rank`, `size`: -1 if NCCL says them.
    struct Birth {
        std::uint64_t key;
        std::int32_t rank;
        std::int32_t size;
        std::uint64_t parent = 0; // whose ranks all take part; 0: none
        std::uint32_t child = 0;  // which of the parent's, from 0
    };
    void begin(const Birth& birth, std::uint64_t now_ns) noexcept;
    void born() noexcept;            // or never will be: the slot is free again
    void end(bool aborted) noexcept; // once; any thread
    void let_go() noexcept;          // the last one who could count into it

  private:
    friend class CallTable;

    void clear() noexcept;

    static std::uint64_t mixed(std::uint64_t a, std::uint64_t b) noexcept {
        const std::uint64_t product = (a ^ b) * 0x9E3779B97F4A7C15ULL;
        return product ^ (product >> 32);
    }
    static void add_one(std::atomic<std::uint64_t>& counter) noexcept {
        counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    // Without a lock: of two threads that take one at the same time, both may get the same.
    static std::uint32_t next_order() noexcept {
        const std::uint32_t order = order_.load(std::memory_order_relaxed) + 1;
        order_.store(order, std::memory_order_relaxed);
        return order;
    }
    static inline std::atomic<std::uint32_t> order_{0};

    struct Peer { // rank + 1 in the communicator; 0: nobody yet
        std::uint32_t rank = 0;
        std::uint32_t sent = 0;
        std::uint32_t received = 0;
        std::uint32_t unused = 0;
    };

    std::atomic<CallSlotState> state_{CallSlotState::kFree};
    std::uint32_t comm_id_ = 0;
    std::uint64_t key_ = 0;
    std::int32_t rank_ = -1;
    std::int32_t size_ = 0;
    std::uint32_t adopted_ = 0;
    std::atomic<std::uint32_t> aborted_{0};
    std::atomic<std::uint64_t> collectives_{0};
    std::atomic<std::uint64_t> collectives_returned_{0};
    std::atomic<std::uint64_t> transfers_{0};
    std::atomic<std::uint64_t> transfers_returned_{0};
    std::uint64_t digest_ = 0;
    std::atomic<std::uint32_t> crowded_{0};  // transfers that were not counted: see Peer
    std::uint32_t logged_ = 0;               // log's thread
    std::uint64_t seen_ = 0;                 // log's thread: all counts, at the last look
    std::atomic<std::uint64_t> moved_ns_{0}; // when the log's thread saw a count move
    std::uint64_t born_ns_ = 0;
    std::atomic<std::uint64_t> surroundings_{0};
    std::uint64_t parent_ = 0; // these three: as long as it is being made
    std::uint32_t child_ = 0;
    std::uint32_t after_ = 0; // calls that the process had made before
    std::array<Peer, kPeers> peers_{};
    std::array<CallRecord, kCollectives> last_{};
    std::array<CallRecord, kTransfers> last_transfers_{};
    Tally tally_; // last: older files have none
};
static_assert(sizeof(CallSlot) == 128 + 1024 + 8192 + 4096 + sizeof(Tally),
              "the ring's file format depends on it");

// All slots of a ring.
class CallTable {
  public:
    static constexpr std::size_t kSlots = 128;

    explicit CallTable(std::span<CallSlot> slots) : slots_(slots) {}

    // Any thread. Null if every slot is taken.
    CallSlot* take(const CallSlot::Owner& owner) noexcept { return take_for(owner); }
    CallSlot* announce(const CallSlot::Birth& birth) noexcept { return take_for(birth); }

    // --- by the log's thread ---

    // Notes which counts have moved since the last look. While the log's thread stands still, also
    // by the thread that writes stacks.
    void look(std::uint64_t now_ns) noexcept;
    // The slots whose communicators have ended, or all (`live` too), each once: to be read before
    // the next call of this. Then a slot is free as soon as nobody can count into it.
    std::vector<CallSlot*> unlogged(bool live) noexcept;

    // Any thread. What every communicator's collectives were, of those that have ended too. When
    // these are very many, the oldest are one: key, number 0 and rank -1.
    struct Tallied {
        std::uint64_t key;
        std::uint32_t comm_id;
        std::int32_t rank;
        std::int32_t size;
        std::uint64_t surroundings;
        Tally::Entry entry;
    };
    std::vector<Tallied> tallied() const;

  private:
    // Of slots that were cleared.
    struct Past {
        std::mutex mutex; // a leaf: held while a slot is read, or kept and cleared
        std::vector<Tallied> rows;
    };
    static constexpr std::size_t kMostPast = 4096; // rows
    static constexpr std::size_t kNewestPast = 1024;
    template <typename About> CallSlot* take_for(const About& about) noexcept;
    static void fold(std::vector<Tallied>& rows);
    static void append(const CallSlot& slot, std::vector<Tallied>& rows);

    std::span<CallSlot> slots_;
    std::unique_ptr<Past> past_ = std::make_unique<Past>();
};

} // namespace tracehook::events
