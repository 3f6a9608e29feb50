// The part of Communicator that makes and undoes windows, and counts what may use them.
#include "core/communicator.h"
#include "core/gate.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

namespace tracehook::core {

namespace {

// Of a window that somebody else made before we looked, not even the address is known.
std::uint64_t size_at(std::uintptr_t address, std::size_t size) noexcept {
    return address != 0 ? size : kNoSize;
}

Maybe said_if(bool known, bool what) noexcept {
    return !known ? Maybe::kUnsaid : what ? Maybe::kTrue : Maybe::kFalse;
}

} // namespace

Communicator::Waiting Communicator::waiting() const noexcept {
    return {waiting_segment_.load(std::memory_order_acquire),
            waiting_since_.load(std::memory_order_acquire)};
}

void Communicator::log_waiting() noexcept {
    const Waiting now = waiting();
    const auto segment = bank_.get(now.segment);
    if (!segment) {
        return;
    }
    log(make_event(row::RegisterStalled{.pool_segment = segment->id,
                                        .addr = segment->address,
                                        .size = segment->size},
                   {.duration_ns = monotonic_ns() - now.since_ns}));
}

void Communicator::log_first_use(const Windows::Lookup& look) noexcept {
    const auto offset = [](const Place& place) {
        return place.window != Place::kNone ? place.offset : kNoSize;
    };
    log(make_event(
        row::PlacementFirstUse{.send_offset = offset(look.send),
                               .receive_offset = offset(look.receive),
                               .send_window = look.send.window,
                               .receive_window = look.receive.window,
                               .config = look.use.config,
                               .operation = static_cast<std::uint8_t>(look.use.operation)}));
}

void Communicator::log_digest() noexcept {
    const Windows::Digest digest = windows_.digest();
    if (digest.uses != 0) {
        log(make_event(row::PlacementDigest{.digest = digest.value, .uses = digest.uses}));
    }
}

std::vector<Outcome> Communicator::register_windows(const std::vector<PoolSegment>& segments,
                                                    bool capturing) noexcept {
    // All of them first: the registration of one waits for all ranks, and the others must not go
    // meanwhile.
    std::vector<std::uint64_t> ids;
    std::ranges::transform(segments, std::back_inserter(ids), &PoolSegment::id);
    if (!bank_.windows_made(ids)) {
        return {};
    }
    std::vector<Outcome> outcomes;
    const int device = calls_->remember_device();
    const InProgress::Call call(windows_in_progress_);
    for (const PoolSegment& segment : segments) {
        if (dead()) {
            break;
        }
        const std::uint64_t begin_ns = monotonic_ns();
        waiting_since_.store(begin_ns, std::memory_order_release);
        waiting_segment_.store(segment.id, std::memory_order_release);
        const Outcome outcome =
            finish_window(calls_->register_window(segment.address, segment.size), segment);
        waiting_segment_.store(0, std::memory_order_release);
        const bool accepted = outcome.result == 0;
        const bool made = accepted && outcome.handle != nullptr;
        log(make_event(row::RegisterWindow{.pool_segment = segment.id,
                                           .addr = segment.address,
                                           .size = segment.size,
                                           .pool = accepted ? segment.pool : kNoIndex,
                                           .ordinal = made ? next_ordinal() : kNoIndex,
                                           .effective = said_if(accepted, made),
                                           .capturing = accepted && capturing,
                                           .observed = false},
                       outcome.result, {.duration_ns = monotonic_ns() - begin_ns}));
        outcomes.push_back(outcome);
        // Of a call that an abort ended nobody knows what it left behind.
        if (outcome.handle != nullptr || dead()) {
            keep({0, segment.id, segment.address, segment.size, outcome.handle});
        } else {
            bank_.window_ended(segment.id);
        }
        if (outcome.result != 0) {
            break;
        }
    }
    for (std::size_t untried = outcomes.size(); untried < segments.size(); ++untried) {
        bank_.window_ended(segments[untried].id);
    }
    calls_->restore_device(device);
    drop_window_records_if_gone();
    return outcomes;
}

void Communicator::refuse(const std::string& why, std::uint64_t from) noexcept {
    const std::string* none = nullptr;
    const auto* const kept = new std::string(why);
    if (!refusal_.compare_exchange_strong(none, kept, std::memory_order_acq_rel)) {
        delete kept;
        return;
    }
    windows_.stop_at(from);
    log(make_event(row::CommunicatorRefused{.call = std::max(from, windows_.calls())}));
}

// An abort frees the communicator. It waits for each of these calls, and none is made after it.
Outcome Communicator::finish_window(const Outcome& begun, const PoolSegment& segment) noexcept {
    constexpr auto kPoll = std::chrono::microseconds(50);
    if (begun.result != 0 && begun.result != kUnderWay) {
        return begun;
    }
    while (gate_->begin_calls(*this)) {
        const Outcome outcome = calls_->finish_window(begun, segment.address, segment.size);
        gate_->end_calls();
        if (outcome.result != kUnderWay) {
            return outcome;
        }
        std::this_thread::sleep_for(kPoll);
    }
    return begun.result == kUnderWay ? Outcome{kNeverReady, nullptr} : begun;
}

bool Communicator::in_flight(std::size_t own) const noexcept {
    return gate_->occupied() || windows_.flights() > own;
}

void Communicator::confirm_windows() noexcept {
    for (const Window& window : take_unconfirmed()) {
        windows_.install(window);
    }
    drop_window_records_if_gone(); // should it have died just now
}

std::size_t Communicator::drop_unconfirmed_windows() noexcept {
    return deregister_these(take_unconfirmed());
}

std::size_t Communicator::deregister_windows(const std::vector<std::uint64_t>& segments) noexcept {
    std::vector<Window> windows;
    for (const std::uint64_t segment : segments) {
        if (const auto window = windows_.remove(segment)) {
            windows.push_back(*window);
        }
    }
    return deregister_these(windows);
}

std::size_t Communicator::deregister_all_windows() noexcept {
    std::vector<Window> windows = windows_.remove_all();
    std::erase_if(windows, [](const Window& window) { return window.segment == 0; });
    const std::vector<Window> unconfirmed = take_unconfirmed();
    windows.insert(windows.end(), unconfirmed.begin(), unconfirmed.end());
    return deregister_these(windows);
}

std::size_t Communicator::deregister_these(const std::vector<Window>& windows) noexcept {
    std::size_t undone = 0;
    if (!windows.empty() && gate_->begin_calls(*this)) {
        const int device = calls_->remember_device();
        calls_->synchronize();
        for (; undone < windows.size() && !dead(); ++undone) {
            const Window& window = windows[undone];
            const std::uint64_t begin_ns = monotonic_ns();
            const int result = calls_->deregister_window(window.handle);
            log_window_ended(window, result, window.segment == 0, monotonic_ns() - begin_ns);
            if (result == 0) {
                bank_.window_ended(window.segment);
            } else {
                const std::lock_guard guard(unconfirmed_mutex_);
                stuck_.push_back(window); // other ranks may still write there
            }
        }
        calls_->restore_device(device);
        gate_->end_calls();
    }
    for (std::size_t left = undone; left < windows.size(); ++left) {
        keep(windows[left]); // it died: the library ends these itself
    }
    drop_window_records_if_gone();
    return undone;
}

void Communicator::log_window_ended(const Window& window, int result, bool observed,
                                    std::uint64_t duration_ns) noexcept {
    log(make_event(row::DeregisterWindow{.pool_segment = window.segment,
                                         .addr = window.address,
                                         .size = size_at(window.address, window.size),
                                         .observed = observed},
                   result, {.duration_ns = duration_ns}));
}

void Communicator::window_of_others(const Observation& seen, bool later) noexcept {
    const bool accepted = seen.result == 0;
    std::uint32_t ordinal = kNoIndex;
    if (seen.handle != nullptr) {
        Window window;
        window.address = seen.address;
        window.size = seen.size;
        window.handle = seen.handle;
        window.ordinal = ordinal = windows_.number();
        const std::lock_guard guard(unconfirmed_mutex_);
        others_.push_back(window);
    }
    log(make_event(
        row::RegisterWindow{.pool_segment = 0,
                            .addr = seen.address,
                            .size = size_at(seen.address, seen.size),
                            .pool = kNoIndex,
                            .ordinal = accepted ? ordinal : kNoIndex,
                            .effective = said_if(accepted && !later, ordinal != kNoIndex),
                            .capturing = false,
                            .observed = true},
        seen.result, {.duration_ns = seen.duration_ns}));
}

void Communicator::count_window_of_others(const void* handle) noexcept {
    std::optional<Window> found;
    {
        const std::lock_guard guard(unconfirmed_mutex_);
        const auto place = std::ranges::find(others_, handle, &Window::handle);
        if (place != others_.end()) {
            found = *place;
        }
    }
    if (found) {
        windows_.install(*found);
    }
}

Window Communicator::take_window_of_others(const void* handle) noexcept {
    windows_.remove_of_others(handle);
    const std::lock_guard guard(unconfirmed_mutex_);
    const auto place = std::ranges::find(others_, handle, &Window::handle);
    if (place == others_.end()) {
        return {};
    }
    const Window taken = *place;
    others_.erase(place);
    return taken;
}

void Communicator::log_window_of_others_ended(const Observation& seen) noexcept {
    log_window_ended({0, 0, seen.address, seen.size, seen.handle}, seen.result, true,
                     seen.duration_ns);
}

void Communicator::undo_window_of_others(const void* handle) noexcept {
    const Window taken = take_window_of_others(handle);
    if (taken.handle != nullptr) {
        deregister_these({taken});
    }
}

// What confirm_windows() will give to the window that is registered now.
std::uint64_t Communicator::next_ordinal() const noexcept {
    const std::lock_guard guard(unconfirmed_mutex_);
    return windows_.next_ordinal() + unconfirmed_.size();
}

void Communicator::keep(const Window& window) noexcept {
    const std::lock_guard guard(unconfirmed_mutex_);
    unconfirmed_.push_back(window);
}

std::vector<Window> Communicator::take_unconfirmed() noexcept {
    const std::lock_guard guard(unconfirmed_mutex_);
    return std::exchange(unconfirmed_, {});
}

bool Communicator::has_graphs() noexcept {
    constexpr auto kPoll = std::chrono::milliseconds(1);
    const auto deadline = std::chrono::steady_clock::now() + gate_->patience().end_for_graphs;
    while (graphs_->count() != 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(kPoll);
    }
    const std::size_t live = graphs_->count();
    if (live != 0) {
        log(make_event(row::CommunicatorGraphs{.graphs = live}));
    }
    return live != 0;
}

void Communicator::device_communicator_begins() noexcept {
    device_communicators_.fetch_add(1, std::memory_order_acq_rel);
}

void Communicator::device_communicator_created(int result, std::uint64_t duration_ns) noexcept {
    if (result != 0) {
        device_communicators_.fetch_sub(1, std::memory_order_acq_rel);
    }
    log(make_event(row::DeviceCommunicatorCreate{.device_communicators = device_communicators()},
                   result, {.duration_ns = duration_ns}));
}

void Communicator::device_communicator_destroyed(int result, std::uint64_t duration_ns) noexcept {
    std::size_t live = device_communicators();
    while (
        result == 0 && live != 0 && // 0: it is older than tracehook
        !device_communicators_.compare_exchange_weak(live, live - 1, std::memory_order_acq_rel)) {
    }
    log(make_event(row::DeviceCommunicatorDestroy{.device_communicators = device_communicators()},
                   result, {.duration_ns = duration_ns}));
}

void Communicator::library_is_gone() noexcept {
    gone_.store(true, std::memory_order_release);
    windows_.end_fences();
    drop_window_records();
}

// After each addition to the table or to the unconfirmed: library_is_gone() finds it, or is found
// here.
void Communicator::drop_window_records_if_gone() noexcept {
    if (gone_.load(std::memory_order_acquire)) {
        drop_window_records();
    }
}

void Communicator::drop_window_records() noexcept {
    for (const Window& window : windows_.remove_all()) {
        bank_.window_ended(window.segment);
    }
    for (const Window& window : take_unconfirmed()) {
        bank_.window_ended(window.segment);
    }
    const std::lock_guard guard(unconfirmed_mutex_);
    for (const Window& window : std::exchange(stuck_, {})) {
        bank_.window_ended(window.segment);
    }
    others_.clear();
}

} // namespace tracehook::core
