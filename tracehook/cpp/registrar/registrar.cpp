#include "registrar/registrar.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace tracehook::registrar {

using namespace events;

namespace {

// Never repeats within a process, so that a thread's cached find() cannot outlive one registrar
// into the next.
std::uint64_t next_epoch() noexcept {
    static std::atomic<std::uint64_t> epoch{0};
    return epoch.fetch_add(1, std::memory_order_relaxed) + 1;
}

} // namespace

Registrar::Registrar(Ring& ring, MakeCompanion make_companion, const Patience& patience,
                     SegmentMemory* memory)
    : ring_(ring), make_companion_(std::move(make_companion)), patience_(patience), memory_(memory),
      aliases_(memory), epoch_(next_epoch()) {}

MemoryKind Registrar::memory_of(std::uintptr_t address) const noexcept {
    return memory_ != nullptr ? memory_->kind_of(address) : MemoryKind::kUnknown;
}

void Registrar::push_gone(const Segment& segment, EventKind kind) noexcept {
    const auto push = [&]<typename Row>(std::type_identity<Row>) {
        ring_.push(make_event(Row{.segment = segment.id,
                                  .addr = segment.address,
                                  .size = segment.size,
                                  .total = ledger_.bytes()},
                              {.device = static_cast<std::int16_t>(segment.device)}));
    };
    switch (kind) {
    case EventKind::kSegmentFree:
        return push(std::type_identity<row::SegmentFree>{});
    case EventKind::kSegmentUnmap:
        return push(std::type_identity<row::SegmentUnmap>{});
    default:
        return push(std::type_identity<row::SegmentUnknown>{});
    }
}

std::vector<CommunicatorPtr> Registrar::communicators_on(int device,
                                                         std::optional<When> when) const {
    std::vector<CommunicatorPtr> communicators;
    for (const auto& [pointer, communicator] : by_pointer_) {
        const Identity& who = communicator->identity();
        if (who.device == device && (!when || who.when == *when)) {
            communicators.push_back(communicator);
        }
    }
    return communicators;
}

// A birth asks with the lock: the library of pausable memory may be seen at the same time.
Nature Registrar::nature_of(std::uintptr_t address, std::size_t size, MemoryKind memory,
                            PoolKind pool) const noexcept {
    const MemoryKind kind = pausable_.has(address) ? MemoryKind::kPausable : memory;
    return {kind, pool, rules_.that_fit(size, kind, pool)};
}

std::vector<Segment> Registrar::to_register(const Identity& communicator) const {
    std::vector<Segment> segments = ledger_.segments(communicator.device);
    std::erase_if(segments,
                  [&](const Segment& segment) { return is_left_out(segment, communicator); });
    return segments;
}

void Registrar::queue(const Segment& segment,
                      const std::vector<CommunicatorPtr>& communicators) noexcept {
    for (const CommunicatorPtr& communicator : communicators) {
        if (!is_left_out(segment, communicator->identity())) {
            communicator->gate().queue(*communicator, segment);
        }
    }
}

void Registrar::segment_allocated(int device, std::uintptr_t address, std::size_t size,
                                  PoolKind pool) noexcept {
    if (abandoned()) {
        return;
    }
    const MemoryKind memory = memory_of(address);
    if (pool == PoolKind::kDefault && memory == MemoryKind::kShareable) {
        ordinary_is_shareable_.store(true, std::memory_order_relaxed);
    }
    std::vector<CommunicatorPtr> communicators;
    {
        std::unique_lock lock(mutex_);
        log_overdue_frees(device);
        remove_stale(device, address, size, lock);
        const Segment segment =
            ledger_.allocated(device, address, size, nature_of(address, size, memory, pool));
        log_born<row::SegmentAlloc>(segment);
        observe_born(segment);
        drop_unborn(device);
        communicators = communicators_on(device, When::kAtBirth);
        // Queued under the same lock that a free, a birth or a switch takes: none of them can come
        // in between.
        queue(segment, communicators);
    }
    for (const CommunicatorPtr& communicator : communicators) {
        communicator->gate().poke();
    }
}

// Before the new segment enters the ledger: this gives up the lock, and a communicator that is born
// meanwhile would register the new segment first and get it queued afterwards. An adoption may add
// what overlaps meanwhile.
void Registrar::remove_stale(int device, std::uintptr_t address, std::size_t size,
                             std::unique_lock<std::mutex>& lock) {
    for (;;) {
        const std::vector<Segment> stale = ledger_.take_stale(device, address, size);
        if (stale.empty()) {
            return;
        }
        for (const Segment& segment : stale) {
            remove_segment(segment, EventKind::kSegmentUnknown, lock);
        }
    }
}

// Gives up the lock while it waits for the device and the gates, and takes it again.
//
// The device may still run collectives that use a registration, so it is waited for before the
// first is undone. What bounds that wait: torch calls cudaFree next, which waits for the device
// too, on the same thread and with the same locks held; so a device that does not finish holds up
// nothing that it would not hold up without us, and an abort ends both. It is not waited for inside
// a gate, and by nobody else: a thread that is about to make a call may be what the device waits
// for. The segment is gone for the program, so nothing new uses it between this wait and the end.
void Registrar::remove_segment(const Segment& segment, EventKind kind,
                               std::unique_lock<std::mutex>& lock) {
    end_captured(segment, kind, lock);
    std::vector<CommunicatorPtr> communicators = communicators_on(segment.device);
    lock.unlock();
    const bool has_alias = aliases_.has(segment);
    std::erase_if(communicators, [&](const CommunicatorPtr& communicator) {
        const Identity& who = communicator->identity();
        return who.local != Local::kOurs || (who.when == When::kAtCalls && !has_alias) ||
               communicator->gate().forget(*communicator, segment);
    });
    const bool buries = !communicators.empty() && memory_ != nullptr &&
                        kind == EventKind::kSegmentFree && memory_->can_keep(segment);
    if (!communicators.empty()) {
        communicators.front()->wait_for_device();
    }
    std::erase_if(communicators, [&](const CommunicatorPtr& communicator) {
        return communicator->gate().withdraw(*communicator, segment, buries);
    });
    lock.lock();
    wait_for_aborts(segment.device, lock);
    if (!communicators.empty()) {
        memory_->keep(segment);
        communicators.front()->log_buried(segment);
        grave_.bury(segment, std::move(communicators));
        return;
    }
    if (has_alias) {
        lock.unlock();
        aliases_.drop(segment, false);
        lock.lock();
    }
    log_gone(segment, kind);
}

void Registrar::end_buried(const Segment& segment) noexcept {
    aliases_.drop(segment, true);
    {
        const std::lock_guard guard(mutex_);
        log_gone(segment, EventKind::kSegmentFree);
    }
    memory_->let_go(segment);
}

void Registrar::log_gone(const Segment& segment, EventKind kind) noexcept {
    ledger_.release_slot(segment);
    feed_.tell(kind == EventKind::kSegmentUnmap ? TRACEHOOK_SEGMENT_UNMAPPED
                                                : TRACEHOOK_SEGMENT_GONE,
               segment);
    if (kind != EventKind::kSegmentUnmap && is_observed(segment)) {
        freed_.emplace_back(segment, kind);
    } else {
        push_gone(segment, kind);
    }
}

void Registrar::segment_freed(int device, std::uintptr_t address, std::size_t size) noexcept {
    if (abandoned()) {
        return;
    }
    std::unique_lock lock(mutex_);
    log_overdue_frees(device);
    if (const auto segment = ledger_.freed(device, address)) {
        remove_segment(*segment, EventKind::kSegmentFree, lock);
    } else if (const auto asleep = pausable_.freed(device, address)) {
        feed_.tell(TRACEHOOK_SEGMENT_GONE, *asleep);
        push_gone(*asleep, EventKind::kSegmentFree);
    } else if (!ledger_.adopting()) { // else it is older than the tracker, and not in the snapshot
        push_gone({0, 0, device, address, size}, EventKind::kSegmentUnknown);
    }
    lock.unlock();
    grave_.work_off(); // what was buried just now may have been deregistered before
}

void Registrar::make_room(int device) noexcept {
    if (abandoned() || memory_ == nullptr) {
        return;
    }
    constexpr auto kPoll = std::chrono::milliseconds(1);
    const Clock::time_point until = Clock::now() + patience_.room_for_call;
    for (;;) {
        grave_.work_off();
        const bool is_buried = grave_.has(device); // asked first: what leaves the grave may be idle
        const bool is_leaving = memory_->free_idle(device) || is_buried;
        if (!is_leaving || Clock::now() >= until) {
            return;
        }
        std::this_thread::sleep_for(kPoll);
    }
}

void Registrar::free_idle(int device) noexcept {
    if (!abandoned() && memory_ != nullptr) {
        grave_.work_off();
        memory_->free_idle(device);
    }
}

std::uint64_t Registrar::subscribe(tracehook_segment_listener listener, void* user) {
    return locked([&] { return feed_.join(listener, user, ledger_.all(), pausable_.asleep()); });
}

void Registrar::unsubscribe(std::uint64_t subscription) noexcept {
    if (!abandoned()) {
        const std::lock_guard guard(mutex_);
        feed_.leave(subscription);
    }
}

void Registrar::begin_adoption() {
    const std::lock_guard guard(mutex_);
    ledger_.begin_adoption();
    ranges_.begin_adoption();
}

void Registrar::adopt_segment(int device, std::uintptr_t address, std::size_t size, PoolKind pool) {
    if (abandoned()) {
        return;
    }
    const bool sleeps = memory_ != nullptr && !memory_->has_memory(address);
    const MemoryKind memory = sleeps ? MemoryKind::kPausable : memory_of(address);
    std::vector<CommunicatorPtr> communicators;
    {
        const std::lock_guard guard(mutex_);
        const auto segment =
            ledger_.adopt(device, address, size, nature_of(address, size, memory, pool));
        if (!segment) {
            return;
        }
        log_born<row::SegmentAdopt>(*segment);
        if (sleeps) {
            pausable_.unmapped(address, size, ledger_.take_in(address, size));
            log_gone(*segment, EventKind::kSegmentUnmap);
            return;
        }
        observe_born(*segment);
        communicators = communicators_on(device, When::kAtBirth);
        queue(*segment, communicators);
    }
    for (const CommunicatorPtr& communicator : communicators) {
        communicator->gate().poke();
    }
}

void Registrar::end_adoption() {
    const std::lock_guard guard(mutex_);
    ledger_.end_adoption();
    ranges_.end_adoption();
    unborn_.clear(); // what is in the snapshot is known by now
}

CommunicatorPtr Registrar::add(Identity identity, const MakeRegistrationCalls& make,
                               const CommunicatorPtr& parent) {
    if (abandoned()) {
        return nullptr;
    }
    CommunicatorPtr communicator;
    CommunicatorPtr former;
    {
        const std::lock_guard guard(mutex_);
        identity.id = next_id_++;
        identity.spared = rules_.that_spare(identity);
        auto gate = parent ? parent->shared_gate() : std::make_shared<Gate>(patience_, grave_);
        communicator =
            std::make_shared<Communicator>(identity, make(identity), gate, ring_, make_companion_);
        communicator->log(
            make_event(row::CommunicatorPending{.ranks = std::max(identity.size, 0),
                                                .local = identity.local,
                                                .adopted = identity.adopted,
                                                .at_calls = identity.when == When::kAtCalls,
                                                .one_host = identity.one_host,
                                                .spared = identity.spared}));
        if (!identity.one_host || rules_.leave_all_out(identity.spared)) {
            communicator->agree_on_calls(false); // all ranks leave it alone
        }
        const bool on = registering() && identity.local == Local::kOurs;
        const bool at_birth = on && identity.when == When::kAtBirth;
        gate->join(communicator, at_birth ? to_register(identity) : std::vector<Segment>{}, !on);
        former = std::exchange(by_pointer_[identity.pointer], communicator);
        if (former) {
            drop_observed(*former);
        }
        epoch_.store(next_epoch(), std::memory_order_release);
    }
    if (former) {
        kill_communicator(
            *former); // its end was not seen, but its pointer belongs to another one now
        former->library_is_gone();
    }
    communicator->gate().poke();
    return communicator;
}

const CommunicatorPtr& Registrar::find_anew(Found& last, const void* pointer) noexcept {
    static const CommunicatorPtr none;
    if (abandoned()) {
        return none;
    }
    const std::lock_guard guard(mutex_);
    const auto found = by_pointer_.find(pointer);
    last = {this, epoch_.load(std::memory_order_relaxed), pointer,
            found == by_pointer_.end() ? nullptr : found->second};
    return last.communicator;
}

CommunicatorPtr Registrar::take(const void* pointer, const Communicator* only) noexcept {
    return locked([&]() -> CommunicatorPtr {
        const auto found = by_pointer_.find(pointer);
        if (found == by_pointer_.end() || (only != nullptr && found->second.get() != only)) {
            return nullptr;
        }
        CommunicatorPtr communicator = found->second;
        by_pointer_.erase(found);
        drop_observed(*communicator);
        epoch_.store(next_epoch(), std::memory_order_release);
        return communicator;
    });
}

void Registrar::retire(const void* pointer) noexcept {
    // Still findable while its registrations are undone, so that an abort from the watchdog can end
    // a retire that hangs.
    const CommunicatorPtr communicator = find(pointer);
    if (!communicator) {
        return;
    }
    const bool stays = communicator->companion().stays();
    if (stays) {
        const std::lock_guard guard(mutex_);
        ending_[pointer] = communicator;
    }
    const Gate::End end = communicator->gate().retire(*communicator, stays);
    // An abort may have overtaken us, and the pointer may belong to another communicator by now.
    take(pointer, communicator.get());
    if (end.first) {
        communicator->companion().log_end();
        communicator->log(make_event(row::CommunicatorRetire{.registrations = end.registrations}));
        communicator->end_calls(false);
        if (communicator->holds_any()) { // it never became ready: NCCL lets go in the call
            const std::lock_guard guard(mutex_);
            ending_[pointer] = communicator;
        }
    }
    communicator->companion().release_idle();
    free_idle(communicator->identity().device);
}

void Registrar::ended(const void* pointer) noexcept {
    if (abandoned()) {
        return;
    }
    CommunicatorPtr communicator;
    {
        const std::lock_guard guard(mutex_);
        if (const auto found = ending_.find(pointer); found != ending_.end()) {
            communicator = std::move(found->second);
            ending_.erase(found);
        }
    }
    if (communicator) {
        communicator->library_is_gone();
    }
    grave_.work_off();
}

Registrar::Ending Registrar::kill(const void* pointer) noexcept {
    const CommunicatorPtr communicator = find(pointer);
    if (!communicator) {
        return {nullptr, {}, nullptr};
    }
    Aborts::iterator entry;
    {
        // Before it is dead: a free that finds it dead must find the abort here.
        const std::lock_guard guard(mutex_);
        entry = aborts_.emplace(communicator->identity().device,
                                Clock::now() + patience_.free_for_abort);
    }
    kill_communicator(*communicator);
    take(pointer, communicator.get());
    communicator->companion().stays();
    return {this, entry, communicator};
}

void Registrar::kill_communicator(Communicator& communicator) noexcept {
    const Gate::End end = communicator.gate().kill(communicator);
    communicator.companion().kill();
    if (end.first) {
        communicator.companion().log_end();
        communicator.log(make_event(row::CommunicatorAbort{.registrations = end.registrations}));
        communicator.end_calls(true);
    }
}

Registrar::Ending::~Ending() {
    if (owner_ == nullptr || owner_->abandoned()) {
        return;
    }
    {
        const std::lock_guard guard(owner_->mutex_);
        owner_->aborts_.erase(entry_);
        owner_->abort_returned_.notify_all();
    }
    // What is idle now is not released here: that waits for the device, where another communicator
    // may hang that is to be aborted next.
    communicator_->library_is_gone();
    owner_->grave_.work_off();
}

// Called with the lock, which is given up while waiting.
void Registrar::wait_for_aborts(int device, std::unique_lock<std::mutex>& lock) {
    Clock::time_point until = Clock::time_point::min();
    for (auto [abort, last] = aborts_.equal_range(device); abort != last; ++abort) {
        until = std::max(until, abort->second);
    }
    if (until != Clock::time_point::min()) {
        abort_returned_.wait_until(lock, until, [&] { return !aborts_.contains(device); });
    }
}

void Registrar::set_registering(bool on) {
    if (abandoned()) {
        return;
    }
    std::vector<CommunicatorPtr> communicators;
    {
        const std::lock_guard guard(mutex_);
        if (registering_.exchange(on) == on) {
            return;
        }
        for (const auto& [pointer, communicator] : by_pointer_) {
            if (communicator->identity().local != Local::kOurs) {
                continue; // what others do is theirs to switch
            }
            communicators.push_back(communicator);
            if (on) {
                const Identity& who = communicator->identity();
                communicator->gate().resume(*communicator, who.when == When::kAtBirth
                                                               ? to_register(who)
                                                               : std::vector<Segment>{});
            }
        }
    }
    for (const CommunicatorPtr& communicator : communicators) {
        on ? communicator->gate().poke() : communicator->gate().suspend(*communicator);
    }
    grave_.work_off();
}

} // namespace tracehook::registrar
