// The part of Registrations that makes and undoes windows.
#include "core/registrations.h"

#include <utility>

namespace tracehook::core {

Registrations::Waiting Registrations::waiting() const noexcept {
    return {waiting_segment_.load(std::memory_order_acquire),
            waiting_since_.load(std::memory_order_acquire)};
}

void Registrations::log_waiting() noexcept {
    const Waiting now = waiting();
    const auto segment = bank_.get(now.segment);
    if (!segment) {
        return;
    }
    Event record = event(EventKind::kRegisterStalled);
    record.segment = segment->id;
    record.address = segment->address;
    record.size = segment->size;
    record.duration_ns = monotonic_ns() - now.since_ns;
    emit(record);
}

void Registrations::log_agreement(EventKind kind, std::uint64_t value, std::uint32_t extra,
                                  std::uint64_t duration_ns) noexcept {
    Event record = event(kind);
    record.value = value;
    record.extra = extra;
    record.duration_ns = duration_ns;
    emit(record);
}

void Registrations::log_placement(EventKind kind, const Windows::Look& look) noexcept {
    Event record = event(kind);
    record.value = std::uint64_t{look.send.window} << 32 | look.receive.window;
    record.address = look.send.offset;
    record.size = look.receive.offset;
    record.extra = look.use.operation;
    emit(record);
}

void Registrations::log_digest() noexcept {
    const Windows::Digest digest = windows_.digest();
    if (digest.uses != 0) {
        Event record = event(EventKind::kPlacementDigest);
        record.value = digest.value;
        record.size = digest.uses;
        emit(record);
    }
}

std::vector<Outcome>
Registrations::register_windows(const std::vector<PoolSegment>& segments) noexcept {
    std::vector<Outcome> outcomes;
    const int device = communicator_->remember_device();
    for (const PoolSegment& segment : segments) {
        if (dead()) {
            break;
        }
        const std::uint64_t begin_ns = monotonic_ns();
        waiting_since_.store(begin_ns, std::memory_order_release);
        waiting_segment_.store(segment.id, std::memory_order_release);
        const Outcome outcome = communicator_->register_window(segment.address, segment.size);
        waiting_segment_.store(0, std::memory_order_release);
        Event record = event(EventKind::kRegisterWindow);
        record.segment = segment.id;
        record.address = segment.address;
        record.size = segment.size;
        record.result = outcome.result;
        record.value = reinterpret_cast<std::uintptr_t>(outcome.handle);
        record.extra = segment.pool;
        record.duration_ns = monotonic_ns() - begin_ns;
        emit(record);
        outcomes.push_back(outcome);
        if (outcome.result != 0) {
            break;
        }
        if (outcome.handle != nullptr) {
            unconfirmed_.push_back({0, segment.id, segment.address, segment.size, outcome.handle});
            bank_.window_made(segment.id);
        }
    }
    communicator_->restore_device(device);
    return outcomes;
}

void Registrations::confirm_windows() noexcept {
    // Should it die just now: the destructor gives back what is left in the table.
    for (const Window& window : unconfirmed_) {
        windows_.install(window);
    }
    unconfirmed_.clear();
}

std::size_t Registrations::drop_unconfirmed_windows() noexcept {
    return deregister_these(std::exchange(unconfirmed_, {}));
}

std::size_t Registrations::deregister_windows(const std::vector<std::uint64_t>& segments) noexcept {
    std::vector<Window> windows;
    for (const std::uint64_t segment : segments) {
        if (const auto window = windows_.remove(segment)) {
            windows.push_back(*window);
        }
    }
    return deregister_these(std::move(windows));
}

std::size_t Registrations::deregister_all_windows() noexcept {
    std::vector<Window> windows = windows_.remove_all();
    windows.insert(windows.end(), unconfirmed_.begin(), unconfirmed_.end());
    unconfirmed_.clear();
    return deregister_these(std::move(windows));
}

std::size_t Registrations::deregister_these(std::vector<Window> windows) noexcept {
    if (windows.empty()) {
        return 0;
    }
    const int device = communicator_->remember_device();
    communicator_->synchronize();
    std::size_t undone = 0;
    for (const Window& window : windows) {
        if (!dead()) {
            const std::uint64_t begin_ns = monotonic_ns();
            const int result = communicator_->deregister_window(window.handle);
            Event record = event(EventKind::kDeregisterWindow);
            record.segment = window.segment;
            record.address = window.address;
            record.size = window.size;
            record.result = result;
            record.value = reinterpret_cast<std::uintptr_t>(window.handle);
            record.duration_ns = monotonic_ns() - begin_ns;
            emit(record);
            ++undone;
        }
        bank_.window_ended(window.segment);
    }
    communicator_->restore_device(device);
    return undone;
}

} // namespace tracehook::core
