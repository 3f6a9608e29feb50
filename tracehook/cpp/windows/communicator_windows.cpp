#include "windows/communicator_windows.h"

#include "registrar/gate.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

namespace tracehook::windows {

using namespace events;
using namespace registrar;

namespace {

// Of a window that somebody else made before we looked, not even the address is known.
std::uint64_t size_at(std::uintptr_t address, std::size_t size) noexcept {
    return address != 0 ? size : kNoSize;
}

Maybe said_if(bool known, bool what) noexcept {
    return !known ? Maybe::kUnsaid : what ? Maybe::kTrue : Maybe::kFalse;
}

} // namespace

void CommunicatorWindows::log_waiting() noexcept {
    const std::uint64_t waiting = waiting_segment_.load(std::memory_order_acquire);
    const std::uint64_t since_ns = waiting_since_.load(std::memory_order_acquire);
    const auto segment = bank_.get(waiting);
    if (!segment) {
        return;
    }
    communicator_.log(make_event(row::RegisterStalled{.pool_segment = segment->id,
                                                      .addr = segment->address,
                                                      .size = segment->size},
                                 {.duration_ns = monotonic_ns() - since_ns}));
}

void CommunicatorWindows::log_first_use(const Windows::Lookup& look) noexcept {
    const auto offset = [](const Place& place) {
        return place.window != Place::kNone ? place.offset : kNoSize;
    };
    communicator_.log(make_event(
        row::PlacementFirstUse{.send_offset = offset(look.send),
                               .receive_offset = offset(look.receive),
                               .send_window = look.send.window,
                               .receive_window = look.receive.window,
                               .config = look.use.config,
                               .operation = static_cast<std::uint8_t>(look.use.operation)}));
}

void CommunicatorWindows::log_digest() noexcept {
    const Windows::Digest digest = table_.digest();
    if (digest.uses != 0) {
        communicator_.log(
            make_event(row::PlacementDigest{.digest = digest.value, .uses = digest.uses}));
    }
}

std::vector<Outcome> CommunicatorWindows::register_windows(const std::vector<PoolSegment>& segments,
                                                           bool capturing) noexcept {
    // All of them first: the registration of one waits for all ranks, and the others must not go
    // meanwhile.
    std::vector<std::uint64_t> ids;
    std::ranges::transform(segments, std::back_inserter(ids), &PoolSegment::id);
    if (!bank_.windows_made(ids)) {
        return {};
    }
    std::vector<Outcome> outcomes;
    const int device = calls_.remember_device();
    const InProgress::Call call(windows_in_progress_);
    for (const PoolSegment& segment : segments) {
        if (communicator_.dead()) {
            break;
        }
        const std::uint64_t begin_ns = monotonic_ns();
        waiting_since_.store(begin_ns, std::memory_order_release);
        waiting_segment_.store(segment.id, std::memory_order_release);
        const Outcome outcome =
            finish_window(calls_.register_window(segment.address, segment.size), segment);
        waiting_segment_.store(0, std::memory_order_release);
        const bool accepted = outcome.result == 0;
        const bool made = accepted && outcome.handle != nullptr;
        communicator_.log(
            make_event(row::RegisterWindow{.pool_segment = segment.id,
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
        if (outcome.handle != nullptr || communicator_.dead()) {
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
    calls_.restore_device(device);
    drop_window_records_if_gone();
    return outcomes;
}

void CommunicatorWindows::refuse(const std::string& why, std::uint64_t from) noexcept {
    if (communicator_.refuse(why)) {
        table_.stop_at(from);
        communicator_.log(
            make_event(row::CommunicatorRefused{.call = std::max(from, table_.calls())}));
    }
}

// An abort frees the communicator. It waits for each of these calls, and none is made after it.
Outcome CommunicatorWindows::finish_window(const Outcome& begun,
                                           const PoolSegment& segment) noexcept {
    constexpr auto kPoll = std::chrono::microseconds(50);
    if (begun.result != 0 && begun.result != kUnderWay) {
        return begun;
    }
    while (communicator_.gate().begin_calls(communicator_)) {
        const Outcome outcome = calls_.finish_window(begun, segment.address, segment.size);
        communicator_.gate().end_calls();
        if (outcome.result != kUnderWay) {
            return outcome;
        }
        std::this_thread::sleep_for(kPoll);
    }
    return begun.result == kUnderWay ? Outcome{kNeverReady, nullptr} : begun;
}

bool CommunicatorWindows::in_flight(std::size_t own) const noexcept {
    return communicator_.gate().occupied() || table_.flights() > own;
}

void CommunicatorWindows::confirm_windows() noexcept {
    for (const Window& window : take_unconfirmed()) {
        table_.install(window);
    }
    drop_window_records_if_gone(); // should it have died just now
}

std::size_t CommunicatorWindows::drop_unconfirmed_windows() noexcept {
    return deregister_these(take_unconfirmed());
}

std::size_t
CommunicatorWindows::deregister_windows(const std::vector<std::uint64_t>& segments) noexcept {
    std::vector<Window> windows;
    for (const std::uint64_t segment : segments) {
        if (const auto window = table_.remove(segment)) {
            windows.push_back(*window);
        }
    }
    return deregister_these(windows);
}

bool CommunicatorWindows::stays() noexcept {
    return has_graphs() || device_communicators() != 0;
}

void CommunicatorWindows::retire() noexcept {
    std::vector<Window> windows = table_.remove_all();
    std::erase_if(windows, [](const Window& window) { return window.segment == 0; });
    const std::vector<Window> unconfirmed = take_unconfirmed();
    windows.insert(windows.end(), unconfirmed.begin(), unconfirmed.end());
    deregister_these(windows);
}

std::size_t CommunicatorWindows::deregister_these(const std::vector<Window>& windows) noexcept {
    std::size_t undone = 0;
    if (!windows.empty() && communicator_.gate().begin_calls(communicator_)) {
        const int device = calls_.remember_device();
        calls_.synchronize();
        for (; undone < windows.size() && !communicator_.dead(); ++undone) {
            const Window& window = windows[undone];
            const std::uint64_t begin_ns = monotonic_ns();
            const int result = calls_.deregister_window(window.handle);
            log_window_ended(window, result, window.segment == 0, monotonic_ns() - begin_ns);
            if (result == 0) {
                bank_.window_ended(window.segment);
            } else {
                const std::lock_guard guard(unconfirmed_mutex_);
                stuck_.push_back(window); // other ranks may still write there
            }
        }
        calls_.restore_device(device);
        communicator_.gate().end_calls();
    }
    for (std::size_t left = undone; left < windows.size(); ++left) {
        keep(windows[left]); // it died: the library ends these itself
    }
    drop_window_records_if_gone();
    return undone;
}

void CommunicatorWindows::log_window_ended(const Window& window, int result, bool observed,
                                           std::uint64_t duration_ns) noexcept {
    communicator_.log(make_event(row::DeregisterWindow{.pool_segment = window.segment,
                                                       .addr = window.address,
                                                       .size = size_at(window.address, window.size),
                                                       .observed = observed},
                                 result, {.duration_ns = duration_ns}));
}

void CommunicatorWindows::window_of_others(const Observation& seen, bool later) noexcept {
    const bool accepted = seen.result == 0;
    std::uint32_t ordinal = kNoIndex;
    if (accepted && (seen.handle != nullptr || later)) {
        Window window;
        window.address = seen.address;
        window.size = seen.size;
        window.handle = seen.handle;
        if (!later) {
            window.ordinal = ordinal = table_.number();
        }
        const std::lock_guard guard(unconfirmed_mutex_);
        others_.push_back(window);
    }
    communicator_.log(make_event(
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

void CommunicatorWindows::count_window_of_others(const void* handle) noexcept {
    std::optional<Window> found;
    {
        const std::lock_guard guard(unconfirmed_mutex_);
        const auto place = std::ranges::find(others_, handle, &Window::handle);
        if (place != others_.end()) {
            found = *place;
        }
    }
    if (found) {
        table_.install(*found);
    }
}

Window CommunicatorWindows::take_window_of_others(const void* handle) noexcept {
    table_.remove_of_others(handle);
    const std::lock_guard guard(unconfirmed_mutex_);
    auto place = std::ranges::find(others_, handle, &Window::handle);
    if (place == others_.end()) { // the eldest of those that NCCL made later: it told us no handle
        place = std::ranges::find(others_, nullptr, &Window::handle);
    }
    if (place == others_.end()) {
        return {};
    }
    const Window taken = *place;
    others_.erase(place);
    return taken;
}

void CommunicatorWindows::log_window_of_others_ended(const Observation& seen) noexcept {
    log_window_ended({0, 0, seen.address, seen.size, seen.handle}, seen.result, true,
                     seen.duration_ns);
}

void CommunicatorWindows::undo_window_of_others(const void* handle) noexcept {
    const Window taken = take_window_of_others(handle);
    if (taken.handle != nullptr) {
        deregister_these({taken});
    }
}

// What confirm_windows() will give to the window that is registered now.
std::uint64_t CommunicatorWindows::next_ordinal() const noexcept {
    const std::lock_guard guard(unconfirmed_mutex_);
    return table_.next_ordinal() + unconfirmed_.size();
}

void CommunicatorWindows::keep(const Window& window) noexcept {
    const std::lock_guard guard(unconfirmed_mutex_);
    unconfirmed_.push_back(window);
}

std::vector<Window> CommunicatorWindows::take_unconfirmed() noexcept {
    const std::lock_guard guard(unconfirmed_mutex_);
    return std::exchange(unconfirmed_, {});
}

bool CommunicatorWindows::has_graphs() noexcept {
    constexpr auto kPoll = std::chrono::milliseconds(1);
    const auto deadline =
        std::chrono::steady_clock::now() + communicator_.gate().patience().end_for_graphs;
    while (graphs_->count() != 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(kPoll);
    }
    const std::size_t live = graphs_->count();
    if (live != 0) {
        communicator_.log(make_event(row::CommunicatorGraphs{.graphs = live}));
    }
    return live != 0;
}

void CommunicatorWindows::device_communicator_begins() noexcept {
    device_communicators_.fetch_add(1, std::memory_order_acq_rel);
}

void CommunicatorWindows::device_communicator_created(int result,
                                                      std::uint64_t duration_ns) noexcept {
    if (result != 0) {
        device_communicators_.fetch_sub(1, std::memory_order_acq_rel);
    }
    communicator_.log(
        make_event(row::DeviceCommunicatorCreate{.device_communicators = device_communicators()},
                   result, {.duration_ns = duration_ns}));
}

void CommunicatorWindows::device_communicator_destroyed(int result,
                                                        std::uint64_t duration_ns) noexcept {
    std::size_t live = device_communicators();
    while (
        result == 0 && live != 0 && // 0: it is older than tracehook
        !device_communicators_.compare_exchange_weak(live, live - 1, std::memory_order_acq_rel)) {
    }
    communicator_.log(
        make_event(row::DeviceCommunicatorDestroy{.device_communicators = device_communicators()},
                   result, {.duration_ns = duration_ns}));
}

void CommunicatorWindows::gone() noexcept {
    table_.end_fences();
    drop_window_records();
}

// After each addition to the table or to the unconfirmed: gone() finds it, or is found
// here.
void CommunicatorWindows::drop_window_records_if_gone() noexcept {
    if (communicator_.gone()) {
        drop_window_records();
    }
}

void CommunicatorWindows::drop_window_records() noexcept {
    for (const Window& window : table_.remove_all()) {
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

} // namespace tracehook::windows
