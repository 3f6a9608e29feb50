#include "core/communicator.h"

#include "core/gate.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

namespace tracehook::core {

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

// For a counter that only the thread inside the gate writes: cheaper than an atomic addition.
template <typename Counter> void add_one(Counter& counter) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

} // namespace

Communicator::Communicator(const Identity& identity, std::unique_ptr<RegistrationCalls> calls,
                           std::shared_ptr<Gate> gate, Ring& ring, Bank& bank)
    : identity_(identity), calls_(std::move(calls)), gate_(std::move(gate)), ring_(ring),
      bank_(bank), calls_counted_(ring.take_calls({identity.key, identity.id, identity.rank,
                                                   identity.size, identity.adopted})) {}

Communicator::~Communicator() {
    drop_window_records();
}

Event Communicator::event(EventKind kind) const noexcept {
    Event event;
    event.kind = kind;
    event.comm = identity_.key;
    event.comm_id = identity_.id;
    event.rank = identity_.rank;
    event.device = static_cast<std::int16_t>(identity_.device);
    return event;
}

Event Communicator::event(EventKind kind, const Segment& segment) const noexcept {
    Event record = event(kind);
    record.segment = segment.id;
    record.address = segment.address;
    record.size = segment.size;
    return record;
}

void Communicator::emit(Event& event) noexcept {
    event.comm_seq = comm_seq_.fetch_add(1, std::memory_order_relaxed) + 1;
    ring_.push(event);
}

void Communicator::log(EventKind kind, std::uint64_t value, int result) noexcept {
    Event record = event(kind);
    record.value = value;
    record.result = result;
    record.extra = static_cast<std::uint32_t>(identity_.size);
    emit(record);
}

void Communicator::log_stall(const Segment& segment) noexcept {
    Event record = event(EventKind::kDeregisterStalled, segment);
    emit(record);
}

void Communicator::log_buried(const Segment& segment) noexcept {
    Event record = event(EventKind::kSegmentBuried, segment);
    emit(record);
}

void Communicator::log_foreign(std::uintptr_t address, std::size_t size) noexcept {
    if (!said_foreign_.exchange(true, std::memory_order_relaxed)) {
        Event record = event(EventKind::kRegisterForeign);
        record.address = address;
        record.size = size;
        emit(record);
    }
}

bool Communicator::register_batch(std::vector<Segment>& batch) noexcept {
    if (!calls_->ready()) {
        return false;
    }
    if (!was_ready_.exchange(true, std::memory_order_relaxed)) {
        log(EventKind::kCommunicatorReady, batch.size());
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
    for (const Segment& segment : batch) {
        handles_.make_room(segment.slot);
    }
    const bool alone = batch.size() == 1;
    const std::uint64_t begin_ns = monotonic_ns();
    std::uint64_t made = 0;
    Event record = event(EventKind::kRegisterLocal);
    record.t_ns = begin_ns;
    for (const Segment& segment : batch) {
        if (dead()) {
            return;
        }
        if (handles_.contains(segment)) {
            continue;
        }
        const Outcome outcome = calls_->register_range(segment.address, segment.size);
        if (alone || made % kClockEvery == kClockEvery - 1) {
            record.t_ns = monotonic_ns();
        }
        record.duration_ns = alone ? record.t_ns - begin_ns : 0;
        if (!put_outcome(segment, outcome, record)) {
            return;
        }
        ++made;
    }
    if (!alone && made != 0) {
        Event total = event(EventKind::kRegisterBatch);
        total.t_ns = monotonic_ns();
        total.duration_ns = total.t_ns - begin_ns;
        total.value = made;
        emit(total);
    }
}

// `record`: an event with its times. False if the call failed: then nothing is registered any more.
bool Communicator::put_outcome(const Segment& segment, const Outcome& outcome,
                               Event& record) noexcept {
    record.segment = segment.id;
    record.address = segment.address;
    record.size = segment.size;
    record.result = outcome.result;
    record.value = reinterpret_cast<std::uintptr_t>(outcome.handle);
    record.extra = static_cast<std::uint32_t>(calls_->expected(segment.memory)) << kEffectShift;
    emit(record);
    if (outcome.result != 0) {
        fail(segment, outcome.result);
        return false;
    }
    handles_.put(segment, outcome.handle);
    held_.store(handles_.size(), std::memory_order_relaxed);
    add_one(made_);
    return true;
}

bool Communicator::register_alias(const Segment& segment, std::uintptr_t alias,
                                  bool shows) noexcept {
    if (handles_.contains(segment)) {
        if (shows && handles_.first_look(segment)) {
            unlooked_.push_back(segment);
        }
        return true;
    }
    if (failed() || !was_ready() || !calls_->ready() || !gate_->begin_calls(*this)) {
        return false;
    }
    const bool registered = register_new_alias(segment, alias);
    gate_->end_calls();
    if (registered && shows && handles_.first_look(segment)) {
        unlooked_.push_back(segment);
    }
    return registered;
}

bool Communicator::register_new_alias(const Segment& segment, std::uintptr_t alias) noexcept {
    const DeviceGuard visit(*calls_);
    const InProgress::Call call(segments_in_progress_);
    handles_.make_room(segment.slot);
    const std::uint64_t begin_ns = monotonic_ns();
    const Outcome outcome = calls_->register_range(alias, segment.size);
    Event record = event(EventKind::kRegisterLocal);
    record.t_ns = monotonic_ns();
    record.duration_ns = record.t_ns - begin_ns;
    return put_outcome(segment, outcome, record);
}

void Communicator::look_at_aliases() noexcept {
    for (const Segment& segment : unlooked_) {
        if (!handles_.contains(segment)) {
            continue;
        }
        void* const handle = handles_.handle_of(segment);
        const auto uses = handle != nullptr ? calls_->uses(handle) : std::optional(0u);
        if (!uses) {
            continue;
        }
        const bool used = *uses != 0;
        add_one(used ? in_effect_ : in_vain_);
        if (used || in_vain() == 1) { // one warning is enough
            Event record =
                event(used ? EventKind::kRegisterUsed : EventKind::kRegisterUnused, segment);
            record.value = *uses;
            emit(record);
        }
    }
    unlooked_.clear();
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
    Event record = event(EventKind::kCommunicatorFailed, segment);
    record.result = result;
    record.value = undone;
    emit(record);
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

void Communicator::deregister_one(const Handles::Held& held) noexcept {
    const std::uint64_t begin_ns = monotonic_ns();
    const int result = held.handle != nullptr ? calls_->deregister(held.handle) : 0;
    Event record = event(EventKind::kDeregisterLocal, held.segment);
    record.t_ns = monotonic_ns();
    record.duration_ns = record.t_ns - begin_ns;
    record.result = result;
    record.value = reinterpret_cast<std::uintptr_t>(held.handle);
    emit(record);
    held_.store(handles_.size(), std::memory_order_relaxed);
    add_one(undone_);
}

void Communicator::report_stuck(const Segment& segment) noexcept {
    Event record = event(EventKind::kDeregisterLocal, segment);
    record.result = kNeverReady;
    emit(record);
}

void Communicator::wait_for_device() noexcept {
    const DeviceGuard visit(*calls_);
    calls_->synchronize();
}

bool Communicator::deregister(const Segment& segment) noexcept {
    if (!handles_.contains(segment)) {
        return true;
    }
    if (!calls_->ready()) {
        return false;
    }
    const DeviceGuard visit(*calls_);
    deregister_one(*handles_.take(segment));
    return true;
}

std::size_t Communicator::deregister_all() noexcept {
    std::size_t undone = 0;
    bool never_ready = false; // waited for once, not for each
    const DeviceGuard visit(*calls_);
    for (const Segment& segment : handles_.segments()) {
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
        deregister_one(*handles_.take(segment));
        ++undone;
    }
    return undone;
}

Event Communicator::seen_event(EventKind kind, const Segment& segment,
                               const Observation& seen) const noexcept {
    Event record = event(kind, segment);
    record.t_ns = seen.t_ns;
    record.duration_ns = seen.duration_ns;
    record.result = seen.result;
    record.value = reinterpret_cast<std::uintptr_t>(seen.handle);
    record.extra = kByOthers | static_cast<std::uint32_t>(calls_->expected(segment.memory))
                                   << kEffectShift;
    return record;
}

void Communicator::observe(const Segment& segment, const Observation& seen) noexcept {
    Event record = seen_event(EventKind::kRegisterLocal, segment, seen);
    emit(record);
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
    Event record = seen_event(EventKind::kDeregisterLocal, *segment, seen);
    emit(record);
    held_.store(observations_.size(), std::memory_order_relaxed);
    undone_.fetch_add(1, std::memory_order_relaxed);
    return segment;
}

std::size_t Communicator::drop_records() noexcept {
    const std::size_t forgotten = handles_.size() + observations_.size();
    observations_.clear();
    handles_.clear();
    held_.store(0, std::memory_order_relaxed);
    return forgotten;
}

} // namespace tracehook::core
