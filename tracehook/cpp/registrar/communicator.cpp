#include "registrar/communicator.h"

#include "registrar/gate.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

namespace tracehook::registrar {

using namespace events;

namespace {

constexpr auto kReadyPoll = std::chrono::microseconds(50);

// In a batch the clock is read at every so many registrations: reading it costs about a tenth of
// one.
constexpr std::uint64_t kClockEvery = 16;

// One run of calls into the library, which may leave another current device behind.
class DeviceGuard {
  public:
    explicit DeviceGuard(RegistrationCalls& calls) noexcept
        : calls_(calls), device_(calls.remember_device()) {}
    ~DeviceGuard() { calls_.restore_device(device_); }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

  private:
    RegistrationCalls& calls_;
    const int device_;
};

// When a call ended that began then, and how long it took.
Head since(std::uint64_t begin_ns) noexcept {
    const std::uint64_t now_ns = monotonic_ns();
    return {.t_ns = now_ns, .duration_ns = now_ns - begin_ns};
}

// For a counter that only the thread inside the gate writes: cheaper than an atomic addition.
template <typename Counter> void add_one(Counter& counter) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

} // namespace

Communicator::Communicator(const Identity& identity, std::unique_ptr<RegistrationCalls> calls,
                           std::shared_ptr<Gate> gate, Ring& ring,
                           const MakeCompanion& make_companion)
    : identity_(identity), calls_(std::move(calls)), gate_(std::move(gate)), ring_(ring),
      calls_counted_(ring.take_calls(
          {identity.key, identity.id, identity.rank, identity.size, identity.adopted})),
      companion_(make_companion ? make_companion(*this) : std::make_unique<Companion>()) {}

void Communicator::log(Event event) noexcept {
    event.comm = identity_.key;
    event.comm_id = identity_.id;
    event.comm_rank = identity_.rank;
    event.device = static_cast<std::int16_t>(identity_.device);
    event.comm_seq = comm_seq_.fetch_add(1, std::memory_order_relaxed) + 1;
    ring_.push(event);
}

void Communicator::log_registered(const Segment& segment, RegisteredFor what,
                                  const Outcome& outcome, bool observed,
                                  const Head& when) noexcept {
    const bool in_vain = outcome.result == 0 && outcome.handle == nullptr;
    log(make_event(row::RegisterLocal{.segment = segment.id,
                                      .addr = segment.address,
                                      .size = segment.size,
                                      .effective = in_vain ? Maybe::kFalse : Maybe::kUnsaid,
                                      .observed = observed,
                                      .expected = calls_->expected(segment.memory),
                                      .for_transfers = what == RegisteredFor::kTransfers},
                   outcome.result, when));
}

void Communicator::log_deregistered(const Segment& segment, RegisteredFor what, int result,
                                    bool observed, const Head& when) noexcept {
    log(make_event(row::DeregisterLocal{.segment = segment.id,
                                        .addr = segment.address,
                                        .size = segment.size,
                                        .observed = observed,
                                        .for_transfers = what == RegisteredFor::kTransfers},
                   result, when));
}

void Communicator::log_stall(const Segment& segment) noexcept {
    log(make_event(row::DeregisterStalled{
        .segment = segment.id, .addr = segment.address, .size = segment.size}));
}

void Communicator::log_buried(const Segment& segment) noexcept {
    log(make_event(
        row::SegmentBuried{.segment = segment.id, .addr = segment.address, .size = segment.size}));
}

void Communicator::log_foreign(std::uintptr_t address, std::size_t size) noexcept {
    if (!said_foreign_.exchange(true, std::memory_order_relaxed)) {
        log(make_event(row::RegisterForeign{.addr = address, .size = size}));
    }
}

void Communicator::log_captured(const Segment& segment) noexcept {
    if (!said_captured_.exchange(true, std::memory_order_relaxed)) {
        log(make_event(row::SegmentCaptured{
            .segment = segment.id, .addr = segment.address, .size = segment.size}));
    }
}

bool Communicator::refuse(const std::string& why) noexcept {
    const std::string* none = nullptr;
    const auto* const kept = new std::string(why);
    if (!refusal_.compare_exchange_strong(none, kept, std::memory_order_acq_rel)) {
        delete kept;
        return false;
    }
    return true;
}

std::optional<LibraryMemory> Communicator::memory() noexcept {
    if (was_ready() && gate_->enter_if_free(*this)) {
        look_at_memory();
        gate_->leave();
    }
    return last_memory();
}

std::optional<LibraryMemory> Communicator::last_memory() const noexcept {
    if (!has_memory_.load(std::memory_order_acquire)) {
        return std::nullopt;
    }
    return LibraryMemory{.suspendable = suspendable_.load(std::memory_order_relaxed),
                         .persistent = persistent_.load(std::memory_order_relaxed)};
}

std::optional<LibraryMemory> Communicator::look_at_memory() noexcept {
    if (!gate_->begin_calls(*this)) {
        return std::nullopt;
    }
    const std::optional<LibraryMemory> found = calls_->ready() ? calls_->memory() : std::nullopt;
    gate_->end_calls();
    if (found) {
        suspendable_.store(found->suspendable, std::memory_order_relaxed);
        persistent_.store(found->persistent, std::memory_order_relaxed);
        has_memory_.store(true, std::memory_order_release);
    }
    return found;
}

bool Communicator::register_batch(std::vector<Segment>& batch) noexcept {
    if (!calls_->ready()) {
        return false;
    }
    if (!was_ready_.exchange(true, std::memory_order_relaxed)) {
        log(make_event(row::CommunicatorReady{.ranks = std::max(identity_.size, 0)}));
    }
    if (failed()) {
        return true;
    }
    register_ready(batch);
    return true;
}

void Communicator::register_ready(std::vector<Segment>& batch) noexcept {
    const DeviceGuard visit(*calls_);
    const InProgress::Call call(segments_in_progress_);
    // NCCL keeps its registrations by address, and looks for the place of a new one from the lowest
    // on: downwards it finds that place at once, upwards it passes all others.
    std::ranges::sort(batch, std::greater<>(), &Segment::address);
    Handles& held = handles(RegisteredFor::kCollectives);
    for (const Segment& segment : batch) {
        held.make_room(segment.slot);
    }
    const bool alone = batch.size() == 1;
    const std::uint64_t begin_ns = monotonic_ns();
    std::uint64_t made = 0;
    Head when{.t_ns = begin_ns};
    for (const Segment& segment : batch) {
        if (dead()) {
            return;
        }
        if (held.contains(segment)) {
            continue;
        }
        const Outcome outcome = calls_->register_range(segment.address, segment.size);
        if (alone || made % kClockEvery == kClockEvery - 1) {
            when.t_ns = monotonic_ns();
        }
        when.duration_ns = alone ? when.t_ns - begin_ns : 0;
        if (!put_outcome(segment, RegisteredFor::kCollectives, outcome, when)) {
            return;
        }
        ++made;
    }
    if (!alone && made != 0) {
        log(make_event(row::RegisterBatch{.count = made}, since(begin_ns)));
    }
}

// False if the call failed: then nothing is registered any more.
bool Communicator::put_outcome(const Segment& segment, RegisteredFor what, const Outcome& outcome,
                               const Head& when) noexcept {
    log_registered(segment, what, outcome, false, when);
    if (outcome.result != 0) {
        fail(segment, outcome.result);
        return false;
    }
    handles(what).put(segment, outcome.handle);
    count_held();
    add_one(made_);
    return true;
}

bool Communicator::register_alias(const Segment& segment, std::uintptr_t alias, RegisteredFor what,
                                  bool shows) noexcept {
    if (!handles(what).contains(segment)) {
        if (failed() || !was_ready() || !calls_->ready() || !gate_->begin_calls(*this)) {
            return false;
        }
        const bool registered = register_new_alias(segment, alias, what);
        gate_->end_calls();
        if (!registered) {
            return false;
        }
    }
    if (shows && handles(what).first_look(segment)) { // an abort leaves the table as it is
        unlooked_.emplace_back(segment, what);
    }
    return true;
}

bool Communicator::register_new_alias(const Segment& segment, std::uintptr_t alias,
                                      RegisteredFor what) noexcept {
    const DeviceGuard visit(*calls_);
    const InProgress::Call call(segments_in_progress_);
    handles(what).make_room(segment.slot);
    const std::uint64_t begin_ns = monotonic_ns();
    const Outcome outcome = calls_->register_range(alias, segment.size);
    return put_outcome(segment, what, outcome, since(begin_ns));
}

void Communicator::look_at_aliases() noexcept {
    if (!gate_->begin_calls(*this)) { // aborted: the library may have let go of the handles
        unlooked_.clear();
        return;
    }
    for (const auto& [segment, what] : unlooked_) {
        if (!handles(what).contains(segment)) {
            continue;
        }
        void* const handle = handles(what).handle_of(segment);
        const auto uses = handle != nullptr ? calls_->uses(handle) : std::optional(0u);
        if (!uses) {
            continue;
        }
        const bool used = *uses != 0;
        add_one(used ? in_effect_ : in_vain_);
        if (used) {
            log(make_event(row::RegisterUsed{.segment = segment.id,
                                             .addr = segment.address,
                                             .size = segment.size,
                                             .means = *uses}));
        } else if (in_vain() == 1) { // one warning is enough
            log(make_event(row::RegisterUnused{
                .segment = segment.id, .addr = segment.address, .size = segment.size}));
        }
    }
    unlooked_.clear();
    gate_->end_calls();
}

void Communicator::fail(const Segment& segment, int result) noexcept {
    failed_.store(true, std::memory_order_relaxed);
    if (holds_any()) {
        // Perhaps in the callback of a birth, which waits for nothing else. Not to wait would take
        // registrations from under collectives that run. A failure is rare, and an abort ends the
        // wait.
        calls_->synchronize();
    }
    const std::size_t undone = deregister_all();
    log(make_event(row::CommunicatorFailed{.segment = segment.id,
                                           .addr = segment.address,
                                           .size = segment.size,
                                           .registrations = undone},
                   result));
}

bool Communicator::wait_ready() noexcept {
    const auto deadline = std::chrono::steady_clock::now() + gate_->patience().undoing_for_ready;
    while (!calls_->ready()) {
        if (dead() || std::chrono::steady_clock::now() > deadline) {
            return false;
        }
        std::this_thread::sleep_for(kReadyPoll);
    }
    return true;
}

bool Communicator::deregister_one(const Segment& segment, RegisteredFor what, bool keeps) noexcept {
    Handles& held = handles(what);
    if (!held.contains(segment)) {
        return true;
    }
    const std::uint64_t begin_ns = monotonic_ns();
    void* const handle = held.handle_of(segment);
    const int result = handle != nullptr ? calls_->deregister(handle) : 0;
    log_deregistered(segment, what, result, false, since(begin_ns));
    if (result != 0 && keeps) {
        held.mark_stuck(segment);
        return false;
    }
    held.drop(segment);
    count_held();
    add_one(undone_);
    return true;
}

void Communicator::report_stuck(const Segment& segment) noexcept {
    log_deregistered(segment, RegisteredFor::kCollectives, kNeverReady, false, {});
}

void Communicator::wait_for_device() noexcept {
    const DeviceGuard visit(*calls_);
    calls_->synchronize();
}

bool Communicator::deregister(const Segment& segment, bool keeps) noexcept {
    if (!holds(segment)) {
        return true;
    }
    if (!calls_->ready()) {
        return false;
    }
    const DeviceGuard visit(*calls_);
    deregister_one(segment, RegisteredFor::kCollectives, keeps);
    deregister_one(segment, RegisteredFor::kTransfers, keeps);
    return true;
}

std::size_t Communicator::deregister_all() noexcept {
    std::size_t undone = 0;
    bool never_ready = false; // waited for once, not for each
    const DeviceGuard visit(*calls_);
    for (const RegisteredFor what : {RegisteredFor::kCollectives, RegisteredFor::kTransfers}) {
        for (const Segment& segment : handles(what).segments()) {
            if (dead()) {
                return undone;
            }
            if (never_ready || !wait_ready()) {
                never_ready = !dead();
                if (never_ready) {
                    report_stuck(segment);
                }
                continue;
            }
            undone += deregister_one(segment, what, true) ? 1 : 0;
        }
    }
    return undone;
}

void Communicator::observe(const Segment& segment, const Observation& seen) noexcept {
    log_registered(segment, RegisteredFor::kCollectives, {seen.result, seen.handle}, true,
                   {.t_ns = seen.t_ns, .duration_ns = seen.duration_ns});
    if (seen.result == 0) {
        made_.fetch_add(1, std::memory_order_relaxed);
        if (seen.handle != nullptr) { // else there is nothing that could be undone
            observations_.put(segment, seen.handle);
            held_.store(observations_.size(), std::memory_order_relaxed);
        }
    }
}

std::optional<Segment> Communicator::unobserve(const Observation& seen) noexcept {
    const std::optional<Segment> segment = observations_.take(seen.handle);
    if (!segment) {
        return std::nullopt; // made before we looked, or of a range that is no segment
    }
    log_deregistered(*segment, RegisteredFor::kCollectives, seen.result, true,
                     {.t_ns = seen.t_ns, .duration_ns = seen.duration_ns});
    held_.store(observations_.size(), std::memory_order_relaxed);
    undone_.fetch_add(1, std::memory_order_relaxed);
    return segment;
}

std::size_t Communicator::give_up_records() noexcept {
    const std::size_t forgotten = handles_[0].size() + handles_[1].size() + observations_.size();
    observations_.clear();
    held_.store(0, std::memory_order_relaxed);
    return forgotten;
}

} // namespace tracehook::registrar
