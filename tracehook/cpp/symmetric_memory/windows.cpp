#include "symmetric_memory/windows.h"

#include <algorithm>
#include <utility>

namespace tracehook::core {

namespace {

// How many uses pass between two records of the digest: a comparison of the logs finds a swap
// within that many.
constexpr std::uint64_t kMilestone = 4096;

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
        return {place.window == Place::kOverrun ? Place::kOverrun
                                                : static_cast<std::uint32_t>(place.window != 0),
                0};
    case Compare::kNothing:
        break;
    }
    return {};
}

} // namespace

std::size_t Windows::Hash::operator()(const Use& use) const noexcept {
    std::uint64_t state = use.operation;
    state = mix(state, use.send.window);
    state = mix(state, use.send.offset);
    state = mix(state, use.receive.window);
    return mix(state, use.receive.offset);
}

void Windows::install(Window window) {
    const std::lock_guard guard(mutex_);
    window.ordinal = next_ordinal_++;
    windows_.insert(std::ranges::upper_bound(windows_, window.address, {}, &Window::address),
                    window);
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

std::optional<Window> Windows::covering(std::uintptr_t address, std::size_t size) const {
    if (!any()) {
        return std::nullopt;
    }
    const std::lock_guard guard(mutex_);
    const Window* window = window_at(address);
    return window != nullptr && size <= window->end() - address ? std::optional(*window)
                                                                : std::nullopt;
}

Place Windows::place(const Side& side, bool* unpinned) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(side.buffer);
    const Window* window = window_at(address);
    if (window == nullptr) {
        return {};
    }
    *unpinned |= !window->pinned;
    const bool overrun = side.size > window->end() - address;
    return {overrun ? Place::kOverrun : window->ordinal + 1, address - window->address};
}

void Windows::count_use(const Use& use) noexcept {
    ++digest_.uses;
    digest_.value = mix(digest_.value, Hash()(use));
}

Windows::Lookup Windows::look(std::uint32_t operation, const Side& send, const Side& receive,
                              Count count) noexcept {
    const std::lock_guard guard(mutex_);
    Lookup look;
    look.send = place(send, &look.unpinned);
    look.receive = place(receive, &look.unpinned);
    look.use = {operation, reduced(look.send, send.compare),
                reduced(look.receive, receive.compare)};
    look.known = known_.contains(look.use);
    if (look.known && count == Count::kKnown) {
        count_use(look.use);
        look.milestone = digest_.uses % kMilestone == 0;
    }
    return look;
}

void Windows::accept(const Lookup& look) {
    const std::lock_guard guard(mutex_);
    known_.insert(look.use);
    count_use(look.use);
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
