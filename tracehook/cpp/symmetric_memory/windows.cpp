#include "symmetric_memory/windows.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tracehook::core {

namespace {

// How many uses pass between two records of the digest: a comparison of the logs finds a swap
// within that many.
constexpr std::uint64_t kMilestone = 4096;

// Longer than an agreement may take by default: a fence that nobody lowers, because the store is
// gone, must not stop the program for ever.
constexpr auto kFenced = std::chrono::minutes(2);

std::uint64_t mix(std::uint64_t state, std::uint64_t value) noexcept {
    state = (state ^ value) * 0x9e3779b97f4a7c15ull;
    return state ^ (state >> 29);
}

// What is left of a place when only `compare` of it matters.
Place reduced(const Place& place, Compare compare) noexcept {
    switch (compare) {
    case Compare::kWhere:
        return place;
    case Compare::kWhether:
        return {place.window >= Place::kEarly ? place.window
                                              : static_cast<std::uint32_t>(place.window != 0),
                0};
    case Compare::kNothing:
        break;
    }
    return {};
}

} // namespace

Windows::Hashed::Hashed(const Use& hashed) noexcept : use(hashed), hash(use.operation) {
    hash = mix(hash, use.send.window);
    hash = mix(hash, use.send.offset);
    hash = mix(hash, use.receive.window);
    hash = mix(hash, use.receive.offset);
}

std::uint64_t Windows::raise_fence() noexcept {
    const std::lock_guard guard(mutex_);
    ++fences_;
    return calls_.fetch_or(kEngaged, std::memory_order_relaxed) & ~kEngaged;
}

void Windows::lower_fence(std::optional<std::uint64_t> begin) noexcept {
    {
        const std::lock_guard guard(mutex_);
        if (begin && *begin >= kRenumbered && calls() < kRenumbered) {
            calls_.store(kEngaged | *begin, std::memory_order_relaxed);
        }
        --fences_;
    }
    lowered_.notify_all();
}

void Windows::install(Window window) {
    const std::lock_guard guard(mutex_);
    if (window.segment != 0) {
        window.ordinal = next_ordinal_++;
    }
    epoch_ = epoch_.value_or(window.begin);
    calls_.fetch_or(kEngaged, std::memory_order_relaxed);
    windows_.insert(std::ranges::upper_bound(windows_, window.address, {}, &Window::address),
                    window);
    count_.store(windows_.size(), std::memory_order_relaxed);
}

std::uint32_t Windows::number() {
    const std::lock_guard guard(mutex_);
    return next_ordinal_++;
}

void Windows::remove_of_others(const void* handle) {
    const std::lock_guard guard(mutex_);
    std::erase_if(windows_, [&](const Window& window) {
        return window.segment == 0 && window.handle == handle;
    });
    count_.store(windows_.size(), std::memory_order_relaxed);
}

std::uint32_t Windows::next_ordinal() const noexcept {
    const std::lock_guard guard(mutex_);
    return next_ordinal_;
}

std::optional<Window> Windows::remove(std::uint64_t segment) {
    const std::lock_guard guard(mutex_);
    const auto found = std::ranges::find(windows_, segment, &Window::segment);
    if (found == windows_.end()) {
        return std::nullopt;
    }
    const Window window = *found;
    windows_.erase(found);
    count_.store(windows_.size(), std::memory_order_relaxed);
    return window;
}

std::vector<Window> Windows::remove_all() {
    const std::lock_guard guard(mutex_);
    count_.store(0, std::memory_order_relaxed);
    return std::exchange(windows_, {});
}

std::vector<Window> Windows::list() const {
    const std::lock_guard guard(mutex_);
    std::vector<Window> windows = windows_;
    std::ranges::sort(windows, {}, &Window::ordinal);
    return windows;
}

bool Windows::holds_segment(std::uint64_t segment) const {
    const std::lock_guard guard(mutex_);
    return std::ranges::find(windows_, segment, &Window::segment) != windows_.end();
}

// Which half an address is in cannot be predicted, so the search has no branch on it: with hundreds
// of windows that is more than twice as fast.
const Window* Windows::window_at(std::uintptr_t address) const noexcept {
    const Window* first = windows_.data();
    for (std::size_t left = windows_.size(); left > 1;) {
        const std::size_t half = left / 2;
        first += first[half].address <= address ? half : 0;
        left -= half;
    }
    const bool found = !windows_.empty() && first->address <= address && address < first->end();
    return found ? first : nullptr;
}

void Windows::stop_at(std::uint64_t call) noexcept {
    const std::lock_guard guard(mutex_);
    stop_ = std::min(call, stop_.value_or(call));
    calls_.fetch_or(kEngaged, std::memory_order_relaxed);
}

std::optional<Window> Windows::covering(std::uintptr_t address, std::size_t size) const {
    if (count() == 0) {
        return std::nullopt;
    }
    const std::lock_guard guard(mutex_);
    const Window* window = window_at(address);
    return window != nullptr && size <= window->end() - address ? std::optional(*window)
                                                                : std::nullopt;
}

Place Windows::place(const Side& side, std::uint64_t call, bool* in_window) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(side.buffer);
    const Window* window = window_at(address);
    if (window == nullptr) {
        return {};
    }
    *in_window = true;
    if (call < window->begin) {
        return {Place::kEarly, 0};
    }
    const bool overrun = side.size > window->end() - address;
    return {overrun ? Place::kOverrun : window->ordinal + 1, address - window->address};
}

void Windows::count_use(const Hashed& use) {
    ++digest_.uses;
    digest_.value = mix(digest_.value, use.hash);
    history_.add(calls(), use.use, digest_.value);
    calls_.fetch_add(1, std::memory_order_relaxed);
}

Windows::Lookup Windows::look(std::uint32_t operation, const Side& send, const Side& receive,
                              Count count) noexcept {
    note_caller();
    std::unique_lock lock(mutex_);
    lowered_.wait_for(lock, kFenced, [&] { return fences_ == 0; });
    Lookup look;
    look.call = calls();
    if (stop_ && look.call >= *stop_) {
        look.refused = true;
        return look;
    }
    look.send = place(send, look.call, &look.in_window);
    look.receive = place(receive, look.call, &look.in_window);
    look.use = {operation, reduced(look.send, send.compare),
                reduced(look.receive, receive.compare)};
    if (!epoch_ || look.call < *epoch_) {
        look.early = look.send.window == Place::kNone && look.receive.window == Place::kNone;
        if (look.early) {
            calls_.fetch_add(1, std::memory_order_relaxed);
        }
        return look;
    }
    const Hashed use(look.use);
    look.known = known_.contains(use);
    if (look.known && count == Count::kKnown) {
        count_use(use);
        look.milestone = digest_.uses % kMilestone == 0;
    }
    return look;
}

void Windows::accept(const Lookup& look) {
    const std::lock_guard guard(mutex_);
    const Hashed use(look.use);
    known_.insert(use);
    count_use(use);
}

std::optional<Use> Windows::past(std::uint64_t call) const {
    const std::lock_guard guard(mutex_);
    return history_.use(call);
}

Windows::Digests Windows::digests(std::uint64_t first, std::uint64_t last) const {
    const std::lock_guard guard(mutex_);
    Digests found;
    for (std::uint64_t call = first; call <= last; ++call) {
        if (const auto digest = history_.digest(call)) {
            found.first = found.values.empty() ? call : found.first;
            found.values.push_back(*digest);
        }
    }
    return found;
}

void Windows::pin(const Lookup& look) noexcept {
    const std::lock_guard guard(mutex_);
    for (Window& window : windows_) {
        window.pinned |=
            window.ordinal + 1 == look.send.window || window.ordinal + 1 == look.receive.window;
    }
}

void Windows::unpin_all() noexcept {
    const std::lock_guard guard(mutex_);
    for (Window& window : windows_) {
        window.pinned = false;
    }
}

Windows::Digest Windows::digest() const {
    const std::lock_guard guard(mutex_);
    return digest_;
}

} // namespace tracehook::core
