#include "windows/bank.h"

#include <algorithm>

namespace tracehook::windows {

using namespace events;

void Bank::open(const Memory& memory, std::size_t limit_bytes_per_device) {
    memory_ = memory;
    limit_ = limit_bytes_per_device;
}

std::size_t Bank::held(int device) const noexcept {
    const auto coming = coming_.find(device);
    std::size_t bytes = coming != coming_.end() ? coming->second : 0;
    for (const auto& [address, segment] : segments_) {
        bytes += segment.device == device ? segment.size : 0;
    }
    return bytes;
}

PoolSegment* Bank::by_id(std::uint64_t id) noexcept {
    const auto found =
        std::ranges::find_if(segments_, [&](const auto& entry) { return entry.second.id == id; });
    return found == segments_.end() ? nullptr : &found->second;
}

template <typename Row> void Bank::log(const PoolSegment& segment) const noexcept {
    ring_.push(make_event(Row{.pool_segment = segment.id,
                              .addr = segment.address,
                              .size = segment.size,
                              .pool_bytes = held(segment.device),
                              .pool = segment.pool},
                          {.device = static_cast<std::int16_t>(segment.device)}));
}

void* Bank::take(const Request& request) noexcept {
    {
        const std::lock_guard guard(mutex_);
        PoolSegment* oldest = nullptr;
        for (auto& [address, segment] : segments_) {
            if (segment.retired && segment.pool == request.pool &&
                segment.device == request.device && segment.size == request.size &&
                (oldest == nullptr || segment.id < oldest->id)) {
                oldest = &segment;
            }
        }
        if (oldest != nullptr) {
            oldest->retired = false;
            oldest->owner = request.owner;
            log<row::SegmentReuse>(*oldest);
            return reinterpret_cast<void*>(oldest->address);
        }
        if (const std::size_t bytes = held(request.device);
            limit_ != 0 && request.size > limit_ - std::min(limit_, bytes)) {
            refusal_ = {refusal_.count + 1, request.device, request.size, bytes, limit_};
            return nullptr;
        }
        coming_[request.device] += request.size;
    }
    void* const memory = memory_.allocate(request.size);
    const std::lock_guard guard(mutex_);
    coming_[request.device] -= request.size;
    if (memory == nullptr) {
        refusal_ = {refusal_.count + 1, request.device, request.size, held(request.device), 0};
        return nullptr;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const PoolSegment segment{next_id_++, request.pool, request.owner, request.device,
                              address,    request.size, false,         0};
    segments_.insert_or_assign(address, segment);
    widen_span(segment);
    log<row::PoolGrow>(segment);
    return memory;
}

// The end first: until both are there, no address lies between them.
void Bank::widen_span(const PoolSegment& segment) noexcept {
    auto& [first, end] = span_;
    end.store(std::max<std::uint64_t>(end.load(std::memory_order_relaxed), segment.end()),
              std::memory_order_relaxed);
    const std::uint64_t before = first.load(std::memory_order_relaxed);
    first.store(before == 0 ? segment.address : std::min<std::uint64_t>(before, segment.address),
                std::memory_order_relaxed);
}

bool Bank::give_back(std::uintptr_t address) noexcept {
    PoolSegment segment;
    {
        const std::lock_guard guard(mutex_);
        const auto found = segments_.find(address);
        if (found == segments_.end()) {
            return false;
        }
        segment = found->second;
    }
    // Before it is retired: from then on another stream may get it.
    wait_for_device(segment.device);
    {
        const std::lock_guard guard(mutex_);
        const auto found = segments_.find(address);
        if (found == segments_.end()) {
            return false; // given back twice
        }
        if (found->second.windows != 0) {
            found->second.retired = true;
            log<row::SegmentRetire>(found->second);
            return true;
        }
        segment = found->second;
        segments_.erase(found);
        log<row::PoolShrink>(segment);
    }
    release(segment);
    return true;
}

// Neither the driver's unmapping nor retiring waits for kernels that still use the memory; the
// allocator counts on a free that does.
void Bank::wait_for_device(int device) noexcept {
    const int before = memory_.enter_device(device);
    memory_.synchronize();
    memory_.enter_device(before);
}

void Bank::release(const PoolSegment& segment) noexcept {
    const int before = memory_.enter_device(segment.device);
    memory_.release(reinterpret_cast<void*>(segment.address));
    memory_.enter_device(before);
}

bool Bank::window_made(std::uint64_t id) noexcept {
    const std::lock_guard guard(mutex_);
    PoolSegment* const segment = by_id(id);
    if (segment == nullptr) {
        return false;
    }
    ++segment->windows;
    return true;
}

void Bank::window_ended(std::uint64_t id) noexcept {
    const std::lock_guard guard(mutex_);
    if (PoolSegment* segment = by_id(id); segment != nullptr && segment->windows > 0) {
        --segment->windows;
    }
}

bool Bank::windows_made(const std::vector<std::uint64_t>& ids) noexcept {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (!window_made(ids[i])) {
            for (std::size_t made = 0; made < i; ++made) {
                window_ended(ids[made]);
            }
            return false;
        }
    }
    return true;
}

std::size_t Bank::release_idle() noexcept {
    std::vector<PoolSegment> idle;
    {
        const std::lock_guard guard(mutex_);
        std::erase_if(segments_, [&](const auto& entry) {
            const bool leaves = entry.second.retired && entry.second.windows == 0;
            if (leaves) {
                idle.push_back(entry.second);
            }
            return leaves;
        });
        for (const PoolSegment& segment : idle) {
            log<row::PoolShrink>(segment);
        }
    }
    std::size_t bytes = 0;
    for (const PoolSegment& segment : idle) {
        wait_for_device(segment.device);
        release(segment);
        bytes += segment.size;
    }
    return bytes;
}

std::optional<PoolSegment> Bank::find(std::uintptr_t address) const noexcept {
    const std::lock_guard guard(mutex_);
    auto after = segments_.upper_bound(address);
    if (after == segments_.begin()) {
        return std::nullopt;
    }
    const PoolSegment& segment = std::prev(after)->second;
    return address < segment.end() ? std::optional(segment) : std::nullopt;
}

std::optional<PoolSegment> Bank::get(std::uint64_t id) const noexcept {
    const std::lock_guard guard(mutex_);
    for (const auto& [address, segment] : segments_) {
        if (segment.id == id) {
            return segment;
        }
    }
    return std::nullopt;
}

std::vector<PoolSegment> Bank::segments() const {
    const std::lock_guard guard(mutex_);
    std::vector<PoolSegment> all;
    for (const auto& [address, segment] : segments_) {
        all.push_back(segment);
    }
    std::ranges::sort(all, {}, &PoolSegment::id);
    return all;
}

Bank::Refusal Bank::last_refusal() const {
    const std::lock_guard guard(mutex_);
    return refusal_;
}

} // namespace tracehook::windows
