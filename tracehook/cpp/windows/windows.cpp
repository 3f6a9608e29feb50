#include "windows/windows.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

namespace tracehook::windows {

namespace {

// How many uses pass between two records of the digest: a comparison of the logs finds a swap
// within that many.
constexpr std::uint64_t kMilestone = 4096;

std::atomic<const LongWait*> long_wait{nullptr};

// What is left of a place when only `compare` of it matters.
Place reduced(const Place& place, Compare compare) noexcept {
    switch (compare) {
    case Compare::kWhere:
        return place;
    case Compare::kWhether:
        return {place.window == Place::kOverrun ? place.window
                                                : static_cast<std::uint32_t>(place.window != 0),
                0};
    case Compare::kNothing:
        break;
    }
    return {};
}

} // namespace

void set_long_wait(const LongWait* wait) noexcept {
    long_wait.store(wait, std::memory_order_release);
}

std::uint64_t Windows::raise_fence(Fence fence, Clock::duration most) noexcept {
    const Clock::time_point now = Clock::now();
    const std::lock_guard guard(mutex_);
    const std::uint64_t next = calls_.fetch_or(kEngaged, std::memory_order_relaxed) & ~kEngaged;
    fences_[static_cast<std::size_t>(fence)] = {
        next, most < Clock::time_point::max() - now ? now + most : Clock::time_point::max()};
    return next;
}

void Windows::move_fence(Fence fence, std::uint64_t to) noexcept {
    {
        const std::lock_guard guard(mutex_);
        fences_[static_cast<std::size_t>(fence)].at = to;
    }
    moved_.notify_all();
}

void Windows::lower_fence(Fence fence, std::optional<std::uint64_t> next) noexcept {
    {
        const std::lock_guard guard(mutex_);
        if (next && *next >= kRenumbered && calls() < kRenumbered) {
            calls_.store(kEngaged | *next, std::memory_order_relaxed);
        }
        fences_[static_cast<std::size_t>(fence)].at = kDown;
    }
    moved_.notify_all();
}

void Windows::end_fences() noexcept {
    {
        const std::lock_guard guard(mutex_);
        fences_ended_ = true;
    }
    moved_.notify_all();
}

// The numbers of calls that are compared are taken. `is_compared`: this call is one of them.
void Windows::wait_at_fence(std::unique_lock<std::mutex>& lock, bool in_group,
                            bool is_compared) noexcept {
    const auto holding = [&]() -> Barrier* {
        const std::uint64_t next = calls() + compared_ - (is_compared ? 1 : 0);
        const auto found =
            std::ranges::find_if(fences_, [&](const Barrier& each) { return each.at <= next; });
        return in_group || fences_ended_ || found == fences_.end() ? nullptr : &*found;
    };
    while (holding() != nullptr) {
        const LongWait* const around = long_wait.load(std::memory_order_acquire);
        void* held = nullptr;
        if (around != nullptr) {
            lock.unlock();
            held = around->let_go();
            lock.lock();
        }
        while (Barrier* const fence = holding()) {
            if (fence->until == Clock::time_point::max()) {
                moved_.wait(lock); // whoever raised it lowers it
            } else if (moved_.wait_until(lock, fence->until) == std::cv_status::timeout &&
                       Clock::now() >= fence->until) {
                fence->at = kDown;
            }
        }
        if (held != nullptr) { // whoever has it may want our lock
            lock.unlock();
            around->take_again(held);
            lock.lock();
        }
    }
}

void Windows::install(Window window) {
    const std::lock_guard guard(mutex_);
    if (window.segment != 0) {
        window.ordinal = next_ordinal_++;
    }
    had_window_ = true;
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
        first += half * static_cast<std::size_t>(first[half].address <= address);
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

std::optional<Window> Windows::own_at(std::uintptr_t address, std::size_t size) const {
    const std::lock_guard guard(mutex_);
    const auto found = std::ranges::find_if(windows_, [&](const Window& window) {
        return window.segment != 0 && window.address < address + size && address < window.end();
    });
    return found != windows_.end() ? std::optional(*found) : std::nullopt;
}

Place Windows::place(const Side& side, bool* in_window) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(side.buffer);
    const Window* window = window_at(address);
    if (window == nullptr) {
        return {};
    }
    *in_window = true;
    const bool overrun = side.size > window->end() - address;
    return {overrun ? Place::kOverrun : window->ordinal + 1, address - window->address};
}

void Windows::count_use(const Use& use, std::uint64_t hash) {
    ++digest_.uses;
    digest_.value = mix(digest_.value, hash);
    history_.add(calls(), use, digest_.value);
    count_call();
}

Windows::Lookup Windows::places(std::uint32_t operation, std::uint32_t config, const Side& send,
                                const Side& receive) const noexcept {
    Lookup look;
    look.call = calls();
    look.refused = stop_ && look.call >= *stop_;
    look.send = place(send, &look.in_window);
    const bool in_place = receive.buffer == send.buffer && receive.size == send.size;
    look.receive = in_place ? look.send : place(receive, &look.in_window);
    look.use = {operation, config, reduced(look.send, send.compare),
                reduced(look.receive, receive.compare)};
    return look;
}

Windows::Lookup Windows::look(std::uint32_t operation, const Side& send, const Side& receive,
                              Act act, bool in_group, std::uint32_t config) noexcept {
    note_caller();
    std::unique_lock lock(mutex_);
    wait_for_fences(lock, in_group, false);
    Lookup look = places(operation, config, send, receive);
    const std::uint64_t hash = hash_of(look.use);
    look.known = known_.contains(look.use, hash);
    if (look.refused || act == Act::kPeek) {
        return look;
    }
    const bool is_use = had_window_ || config != 0;
    // A rank whose use has a window asks the others, which answer from their history.
    const bool is_compared = config != 0 || look.use.send.window != Place::kNone ||
                             look.use.receive.window != Place::kNone;
    look.counted = !is_use || !is_compared || look.known;
    if (!look.counted) {
        ++compared_;
        return look;
    }
    ++taken_off_;
    if (!is_use) {
        count_call();
    } else {
        count_use(look.use, hash);
        look.milestone = digest_.uses % kMilestone == 0;
    }
    return look;
}

Windows::Lookup Windows::accept(const Lookup& agreed, const Side& send, const Side& receive,
                                bool in_group) {
    std::unique_lock lock(mutex_);
    wait_for_fences(lock, in_group, true);
    Lookup look = places(agreed.use.operation, agreed.use.config, send, receive);
    const std::uint64_t hash = hash_of(look.use);
    look.known = known_.contains(look.use, hash);
    look.counted = !look.refused && look.use == agreed.use;
    if (look.counted || look.refused) {
        --compared_;
    }
    if (look.counted) {
        ++taken_off_;
        known_.insert(look.use, hash);
        count_use(look.use, hash);
    }
    return look;
}

void Windows::withdraw() noexcept {
    const std::lock_guard guard(mutex_);
    --compared_;
    count_call();
}

std::size_t Windows::flights() const {
    // A call of an open group lands when the group has begun: in this order it is seen in one of
    // them.
    const std::uint64_t landed = landed_.load(std::memory_order_acquire);
    const std::size_t groups = groups_.load(std::memory_order_acquire);
    const std::lock_guard guard(mutex_);
    return groups + compared_ + taken_off_ - landed;
}

void Windows::count_end(std::int64_t first) noexcept {
    const std::uint64_t now = calls();
    const std::int64_t ends = this->ends();
    const bool goes_on = calls_at_end_.load(std::memory_order_relaxed) == now;
    ends_.store(ends == 0 ? first : goes_on ? ends + 1 : 1, std::memory_order_relaxed);
    calls_at_end_.store(now, std::memory_order_relaxed);
}

std::uint64_t Windows::calls_begun() const {
    const std::lock_guard guard(mutex_);
    return calls() + compared_;
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

} // namespace tracehook::windows
