#include "windows.h"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace tracehook::rehearsal::nccl {

namespace {

struct Handles {
    std::mutex mutex; // protects the states; comes last
    std::unordered_map<Window, HandleState> states;
};

Handles& handles() {
    static Handles& kept = *new Handles; // never destroyed: a late thread may still ask
    return kept;
}

void set_state(Window handle, HandleState state) {
    const std::lock_guard lock(handles().mutex);
    handles().states[handle] = state;
}

bool overlap(Extent left, Extent right) {
    return left.begin < right.end && right.begin < left.end;
}

std::uint64_t mixed(std::uint64_t history, std::uint64_t event) {
    return (history ^ (event + 0x9e3779b97f4a7c15ULL)) * 0x100000001b3ULL;
}

} // namespace

std::size_t bytes_of(const Pieces& pieces) {
    std::size_t total = 0;
    for (const SharedRange& piece : pieces) {
        total += piece.bytes;
    }
    return total;
}

HandleState window_state(Window handle) {
    const std::lock_guard lock(handles().mutex);
    const auto found = handles().states.find(handle);
    return found == handles().states.end() ? HandleState::kUnknown : found->second;
}

WindowTable::~WindowTable() {
    end();
}

std::shared_ptr<const MappedMemory> WindowTable::mapped_at(std::uintptr_t base) const {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
        if (entry.memory->extent.begin == base && !entry.freed) {
            return entry.memory;
        }
    }
    return nullptr;
}

std::size_t WindowTable::mapped_bytes() const {
    const std::lock_guard lock(mutex_);
    std::set<const MappedMemory*> counted;
    std::size_t total = 0;
    for (const Entry& entry : entries_) {
        if (counted.insert(entry.memory.get()).second) {
            total += entry.memory->extent.end - entry.memory->extent.begin;
        }
    }
    return total;
}

void WindowTable::keep(const std::shared_ptr<const MappedMemory>& memory) {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<std::size_t>(memory->position) - 1;
    if (kept_.size() <= index) {
        kept_.resize(index + 1);
    }
    kept_[index] = memory;
}

Window WindowTable::add(const std::shared_ptr<const MappedMemory>& memory, Extent extent, int flags,
                        void* registration) {
    // Never deleted: see the header.
    const Window handle = new std::byte[64];
    set_state(handle, HandleState::kLive);
    const std::lock_guard lock(mutex_);
    entries_.push_back({handle, extent, flags, registration, ++added_, false, memory,
                        std::make_shared<const char>()});
    history_ = mixed(history_, 0);
    return handle;
}

std::optional<WindowTable::Removed> WindowTable::remove(Window handle) {
    const std::lock_guard lock(mutex_);
    const auto entry = std::ranges::find(entries_, handle, &Entry::handle);
    if (entry == entries_.end()) {
        return std::nullopt;
    }
    const Removed removed{entry->extent, entry->registration, entry->pin.use_count() > 1};
    history_ = mixed(history_, entry->ordinal);
    entries_.erase(entry);
    set_state(handle, HandleState::kDeregistered);
    return removed;
}

Placement WindowTable::find(const void* pointer, std::size_t size) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
        if (entry.extent.begin <= begin && begin < entry.extent.end) {
            const MappedMemory& memory = *entry.memory;
            return {memory.position,
                    begin - memory.extent.begin,
                    (entry.flags & kCollSymmetric) != 0,
                    memory.whole,
                    begin + size > entry.extent.end,
                    entry.pin};
        }
    }
    return {};
}

std::shared_ptr<const MappedMemory> WindowTable::memory(std::int32_t position) const {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<std::size_t>(position) - 1;
    return index < kept_.size() ? kept_[index] : nullptr;
}

std::optional<Extent> WindowTable::overlapping(Extent extent) const {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
        if (overlap(entry.extent, extent)) {
            return entry.extent;
        }
    }
    return std::nullopt;
}

std::vector<Extent> WindowTable::take_freed(std::uintptr_t base, std::size_t size) {
    std::vector<Extent> extents;
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) {
        // The whole memory under a window is pinned, not only the window's own range.
        if (!entry.freed && overlap(entry.memory->extent, {base, base + size})) {
            entry.freed = true;
            extents.push_back(entry.extent);
        }
    }
    return extents;
}

std::size_t WindowTable::size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
}

std::uint64_t WindowTable::history() const {
    const std::lock_guard lock(mutex_);
    return history_;
}

void WindowTable::end() {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
        set_state(entry.handle, HandleState::kEnded);
    }
    entries_.clear();
}

} // namespace tracehook::rehearsal::nccl
