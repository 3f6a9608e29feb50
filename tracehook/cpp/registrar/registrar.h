// The registrar: takes the allocator's and the communicators' events and keeps every live segment
// registered with every live communicator of its device.
//
// segment_allocated / segment_freed run in the allocator's callback: the device's allocator lock is
// held, perhaps the GIL too, on any thread. They never throw, log, take the GIL, allocate device
// memory, call the allocator or make a collective call. If the host has no memory left for a table,
// the process ends (std::terminate): a segment that is not in the tables would be freed while it is
// registered. Everything else runs on a thread that holds none of the allocator's locks.
//
// Lock order: GIL -> allocator's device lock -> registrar's mutex -> grave's -> gate's -> ring's.
// The registrar's mutex is held for table work only, never while waiting for a gate, never during a
// call into a communicator.
#pragma once

#include "events/of_thread.h"
#include "registrar/aliases.h"
#include "registrar/communicator.h"
#include "registrar/feed.h"
#include "registrar/gate.h"
#include "registrar/grave.h"
#include "registrar/ledger.h"
#include "registrar/live_graphs.h"
#include "registrar/patience.h"
#include "registrar/pausable.h"
#include "registrar/ranges.h"
#include "registrar/segment_rules.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace tracehook::registrar {

class Registrar {
  public:
    using Clock = std::chrono::steady_clock;
    using Aborts =
        std::multimap<int, Clock::time_point>; // by device, with the time until which a free waits
    using MakeRegistrationCalls =
        std::function<std::unique_ptr<RegistrationCalls>(const Identity&)>;

    // Every communicator gets a companion from `make_companion`. Without `memory` nobody knows what
    // the memory of a segment is, and no segment has an alias.
    explicit Registrar(events::Ring& ring, MakeCompanion make_companion = {},
                       const Patience& patience = {}, SegmentMemory* memory = nullptr);

    // --- the allocator's events, and its snapshot ---

    void segment_allocated(int device, std::uintptr_t address, std::size_t size,
                           PoolKind pool = PoolKind::kDefault) noexcept;
    // The allocator's free of the memory follows on this thread.
    void segment_freed(int device, std::uintptr_t address, std::size_t size) noexcept;
    // By who finds no room on a device, perhaps with the allocator's lock. Waits for what is buried
    // there, or on its way to the driver on any thread, five seconds at most, and for the device.
    void make_room(int device) noexcept;
    // By a thread that may wait for the device, and has just done so.
    void free_idle(int device) noexcept;

    // Attach the tracker between begin_adoption() and the snapshot; adopt every segment of the
    // snapshot; end.
    void begin_adoption();
    void adopt_segment(int device, std::uintptr_t address, std::size_t size,
                       PoolKind pool = PoolKind::kDefault);
    void end_adoption();

    // --- expandable segments: mapped and unmapped in parts, followed and never registered ---

    // The first after the part was mapped, the second after it was unmapped: in the callback too.
    void range_mapped(int device, std::uintptr_t address, std::size_t size) noexcept;
    void range_unmapped(int device, std::uintptr_t address, std::size_t size) noexcept;
    void adopt_range(int device, std::uintptr_t address, std::size_t size);

    // --- memory that a library takes away and gives back under a segment (pausable.h) ---

    // After memory that the library made can be used, and before it is unmapped. Perhaps in the
    // allocator, with its lock, or with the GIL. The second returns when no communicator of ours
    // holds a segment there, and buries none: if one was registered before we saw the library, that
    // takes as long as the call that is in NCCL. False: as far as we know nothing was mapped there.
    void memory_mapped(std::uintptr_t address, std::size_t size) noexcept;
    bool memory_unmapped(std::uintptr_t address, std::size_t size) noexcept;
    // Whether a library has mapped any memory so far.
    bool has_pausable() const noexcept { return has_pausable_.load(std::memory_order_relaxed); }
    // By the thread inside the gate of `communicator`: the library itself registers the memory at
    // `address` for a captured call. Returns where to count the graph, null if no library can take
    // that memory away. If it goes while such a graph lives, that is logged.
    std::shared_ptr<LiveGraphs> captured(const Communicator& communicator,
                                         std::uintptr_t address) noexcept;

    // --- what somebody else registers, seen by the interposer after the call ---

    // The communicator's identity says that it is observed. A range that is no whole segment is
    // ignored; one of a segment that is just being born waits for segment_allocated().
    void observed(const CommunicatorPtr& communicator, const Observation& seen) noexcept;
    void unobserved(const CommunicatorPtr& communicator, const Observation& seen) noexcept;
    // Logs what waits for an event of the allocator that may not come any more.
    void log_overdue() noexcept;

    // --- others that keep something by an address (feed_abi.h) ---

    std::uint64_t subscribe(tracehook_segment_listener listener, void* user); // 0: abandoned
    void unsubscribe(std::uint64_t subscription) noexcept;

    // --- communicators ---

    // A communicator that was created or found. It gets every live segment of its device, now or as
    // soon as it is ready. `identity.id` is given here. With `parent`, the two share one gate. A
    // pointer that is known already (its end was never seen) is dropped as dead first. Returns null
    // while abandoned.
    CommunicatorPtr add(Identity identity, const MakeRegistrationCalls& make,
                        const CommunicatorPtr& parent = nullptr);
    // Null if unknown. The reference is the calling thread's own and lasts until its next find().
    const CommunicatorPtr& find(const void* pointer) noexcept {
        Found& last = events::OfThread<Found>::mine();
        if (last.owner == this && last.pointer == pointer &&
            last.epoch == epoch_.load(std::memory_order_acquire) && !abandoned()) {
            return last.communicator;
        }
        return find_anew(last, pointer);
    }

    // Before destroy / finalize. Unknown pointers are ignored. What the communicator's companion
    // keeps may have to stay until ended().
    void retire(const void* pointer) noexcept;
    // After destroy / abort returned.
    void ended(const void* pointer) noexcept;

    // Before abort / revoke. The library lets go of the registrations while that call runs, so the
    // caller keeps the result until the call returned: a segment that is freed meanwhile waits for
    // it (five seconds from the abort's beginning at most), and what the companion keeps stays.
    class Ending {
      public:
        Ending(Registrar* owner, Aborts::iterator entry, CommunicatorPtr communicator) noexcept
            : owner_(owner), entry_(entry), communicator_(std::move(communicator)) {}
        Ending(const Ending&) = delete;
        Ending& operator=(const Ending&) = delete;
        ~Ending();

      private:
        Registrar* const owner_; // null: there was nothing to end
        const Aborts::iterator entry_;
        const CommunicatorPtr communicator_;
    };
    Ending kill(const void* pointer) noexcept;

    // What fits one is followed and never registered. To be called before there is a segment.
    void set_rules(const std::vector<SegmentRule>& rules) { rules_.set(rules); }

    // --- calls that gain by a registration ---

    // A buffer of a call. `shows`: the library marks the registration that such a buffer used.
    struct Buffer {
        std::uintptr_t address = 0;
        std::size_t size = 0;
        bool shows = true;
    };
    // Whether calls of `communicator` run on registered memory, as all its ranks agreed.
    bool registers_calls(const Communicator& communicator) const noexcept;

    // By the thread inside the gate of `communicator`, just before a call with these buffers. Gives
    // each of them an address at which the same bytes are registered; or none of them, and returns
    // false, because a call needs all.
    bool to_registered(Communicator& communicator, RegisteredFor what,
                       std::span<Buffer> buffers) noexcept;

    // The opposite, for the memory of a scope: whoever made its window, or registers every segment,
    // has registered it, too, and a transfer from there to memory that is not registered in effect
    // hangs or hands over wrong data. Returns an address at which the same bytes are not
    // registered, or `address` itself: so where somebody registers ordinary memory in effect, too.
    // `for_ever`: a captured graph keeps that address.
    std::uintptr_t unregistered(const Communicator& communicator, std::uintptr_t address,
                                std::size_t size, bool for_ever) noexcept;

    // --- switching (one caller at a time) ---

    // Off: everything is deregistered, and stays so; segments and communicators are still followed,
    // so that on is complete.
    void set_registering(bool on);
    bool registering() const noexcept { return registering_.load(std::memory_order_relaxed); }

    // Any thread: a communicator is being made, as long as somebody has what this returns.
    std::shared_ptr<events::CallSlot> announce(const events::CallSlot::Birth& birth) {
        return abandoned() ? nullptr : ring_.announce(birth);
    }

    // In a forked child, where locks may be held by threads that no longer exist: every entry
    // returns at once, for good.
    void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }
    bool abandoned() const noexcept { return abandoned_.load(std::memory_order_relaxed); }

    // --- looking ---

    std::vector<CommunicatorPtr> communicators() const;
    std::vector<Segment> segments() const;
    std::vector<Segment> segments_asleep() const; // torch has them, and they have no memory
    std::optional<Segment> segment_at(std::uintptr_t address) const; // any address inside it
    std::vector<Range> ranges() const;                               // of expandable segments
    std::optional<Range> range_at(std::uintptr_t address) const;     // the same
    std::uint64_t ledger_version() const; // changes whenever a segment or a range does
    struct Totals {
        std::size_t segments;
        std::size_t bytes;
        std::size_t communicators;
    };
    Totals totals() const;

  private:
    // Out of the table; with `only`, nobody else's entry.
    CommunicatorPtr take(const void* pointer, const Communicator* only = nullptr) noexcept;
    void log_mapped(const Range& range, bool adopted) noexcept;
    template <typename Row> void log_born(const Segment& segment) noexcept {
        constexpr bool kIsMapped = std::is_same_v<Row, events::row::SegmentMap>;
        feed_.tell(kIsMapped ? TRACEHOOK_SEGMENT_MAPPED : TRACEHOOK_SEGMENT_BORN, segment);
        ring_.push(events::make_event(Row{.segment = segment.id,
                                          .addr = segment.address,
                                          .size = segment.size,
                                          .total = ledger_.bytes(),
                                          .memory_kind = segment.memory,
                                          .pool_kind = segment.pool,
                                          .left_out = segment.left_out},
                                      {.device = static_cast<std::int16_t>(segment.device)}));
    }
    void push_gone(const Segment& segment,
                   events::EventKind kind) noexcept; // segment.free, .unmap, .unknown
    // What `body` returns, with the mutex; nothing once the registrar was abandoned.
    template <typename Body> auto locked(Body&& body) const {
        if (abandoned()) {
            return decltype(body())();
        }
        const std::lock_guard guard(mutex_);
        return body();
    }
    // What a thread found last.
    struct Found {
        const Registrar* owner = nullptr;
        std::uint64_t epoch = 0;
        const void* pointer = nullptr;
        CommunicatorPtr communicator;
    };
    const CommunicatorPtr& find_anew(Found& last, const void* pointer) noexcept;
    // Without `when`: all.
    std::vector<CommunicatorPtr> communicators_on(int device, std::optional<When> when = {}) const;
    MemoryKind memory_of(std::uintptr_t address) const noexcept; // but for a pausable one
    Nature nature_of(std::uintptr_t address, std::size_t size, MemoryKind memory,
                     PoolKind pool) const noexcept;
    static bool is_left_out(const Segment& segment, const Identity& communicator) noexcept {
        return (segment.left_out & ~communicator.spared) != 0;
    }
    std::vector<Segment> to_register(const Identity& communicator) const;
    void queue(const Segment& segment, const std::vector<CommunicatorPtr>& communicators) noexcept;
    static void kill_communicator(Communicator& communicator) noexcept;
    void wait_for_aborts(int device, std::unique_lock<std::mutex>& lock);
    void remove_stale(int device, std::uintptr_t address, std::size_t size,
                      std::unique_lock<std::mutex>& lock);
    void remove_segment(const Segment& segment, events::EventKind kind,
                        std::unique_lock<std::mutex>& lock);
    void end_buried(const Segment& segment) noexcept;
    void log_gone(const Segment& segment, events::EventKind kind) noexcept;
    void end_captured(const Segment& segment, events::EventKind kind,
                      std::unique_lock<std::mutex>& lock);
    void observe_born(const Segment& segment) noexcept;
    void drop_unborn(int device) noexcept;
    void log_overdue_frees(int device) noexcept;
    void log_overdue_frees_if_undone() noexcept;
    bool is_observed(const Segment& segment) const noexcept;
    void drop_observed(const Communicator& communicator) noexcept;

    mutable std::mutex
        mutex_; // ledger_, ranges_, pausable_, feed_, captured_, by_pointer_, ending_, next_id_,
                // aborts_, unborn_, freed_; comes after the allocator's lock
    events::Ring& ring_;
    const MakeCompanion make_companion_;
    const Patience patience_;
    SegmentMemory* const memory_;
    std::atomic<bool> ordinary_is_shareable_{false}; // segments of no pool come from virtual memory
    Aliases aliases_;
    SegmentRules rules_;
    Ledger ledger_;
    Ranges ranges_;
    Pausable pausable_;
    Feed feed_;
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::shared_ptr<LiveGraphs>>
        captured_; // by segment and communicator
    std::unordered_map<const void*, CommunicatorPtr> by_pointer_;
    std::unordered_map<const void*, CommunicatorPtr> ending_; // retired, and not gone
    std::uint32_t next_id_ = 1;
    Aborts aborts_; // under way

    // Who registers by itself has a tracker like ours, and only one of the two can be told first of
    // a segment. What it registered before we knew of the segment waits here, and so does the event
    // of a segment that is freed before it was deregistered. Both belong to one call of the
    // allocator: with its next event of that device they are over.
    std::vector<std::pair<CommunicatorPtr, Observation>> unborn_;
    std::vector<std::pair<Segment, events::EventKind>> freed_;
    std::condition_variable abort_returned_;
    std::atomic<std::uint64_t>
        epoch_; // changes with by_pointer_; lets each thread cache its last find()
    Grave grave_{[this](const Segment& segment) { end_buried(segment); }};
    std::atomic<bool> registering_{true};
    std::atomic<bool> has_pausable_{false};
    std::atomic<bool> abandoned_{false};
};

} // namespace tracehook::registrar
