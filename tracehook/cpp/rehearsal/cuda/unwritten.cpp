#include "unwritten.h"

#include "cuda_abi.h"
#include "devices.h"
#include "host_limits.h"
#include "memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr size_t kWidestElement = 16; // bytes
constexpr size_t kWorthNoting = 1U << 16;

uintptr_t address_of(const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer);
}

void fill_bytes(uintptr_t begin, uintptr_t end, unsigned char byte) {
    std::memset(reinterpret_cast<void*>(begin), byte, end - begin);
}

bool may_be_taken(size_t bytes) {
    const auto elements = static_cast<int64_t>(bytes / kWidestElement);
    return elements <= kSmallTensor || (elements <= most_values() && !memory_is_short());
}

bool is_of_this_process_alone(uintptr_t begin, uintptr_t end) {
    while (begin < end) {
        const auto allocation = Memory::instance().find(reinterpret_cast<const void*>(begin), 1);
        if (!allocation || allocation->dying || allocation->physical == nullptr ||
            allocation->physical->is_open_to_others()) {
            return false;
        }
        begin = allocation->base + allocation->size;
    }
    return true;
}

// Without memory for the book of ranges.
template <typename Value, typename Body> Value or_else(Value otherwise, Body&& body) noexcept {
    try {
        return body();
    } catch (...) {
        return otherwise;
    }
}

} // namespace

Unwritten::Ranges::const_iterator Unwritten::first_behind(uintptr_t address) const {
    auto at = ranges_.upper_bound(address);
    if (at != ranges_.begin() && std::prev(at)->second.end > address) {
        --at;
    }
    return at;
}

template <typename Visit> void Unwritten::take(uintptr_t begin, uintptr_t end, Visit&& visit) {
    for (auto at = first_behind(begin); at != ranges_.end() && at->first < end;) {
        const auto [first, range] = *at;
        at = ranges_.erase(at);
        if (first < begin) {
            ranges_.emplace(first, Range{begin, range.byte});
        }
        if (range.end > end) {
            at = ranges_.emplace(end, range).first;
        }
        visit(std::max(first, begin), std::min(range.end, end), range.byte);
    }
    count_.store(ranges_.size(), std::memory_order_release);
}

bool Unwritten::any(const void* at, size_t size) const {
    if (none() || forked_child()) {
        return false;
    }
    const std::lock_guard lock(mutex_);
    const auto next = first_behind(address_of(at));
    return next != ranges_.end() && next->first < address_of(at) + size;
}

bool Unwritten::note(void* at, size_t size, unsigned char byte) {
    const uintptr_t begin = address_of(at);
    if (size == 0 || forked_child()) {
        return false;
    }
    const std::lock_guard lock(mutex_);
    if (!is_of_this_process_alone(begin, begin + size)) {
        return false;
    }
    take(begin, begin + size, [](uintptr_t, uintptr_t, unsigned char) {});
    ranges_.emplace(begin, Range{begin + size, byte});
    count_.store(ranges_.size(), std::memory_order_release);
    return true;
}

void Unwritten::put(void* at, size_t size, unsigned char byte) {
    if (size < kWorthNoting || !note(at, size, byte)) {
        set_bytes(at, byte, size);
    }
}

bool Unwritten::fill(const void* at, size_t size) {
    if (none() || forked_child()) {
        return true;
    }
    const uintptr_t begin = address_of(at);
    const uintptr_t end = begin + size;
    const std::lock_guard lock(mutex_);
    size_t missing = 0;
    for (auto next = first_behind(begin); next != ranges_.end() && next->first < end; ++next) {
        missing += std::min(next->second.end, end) - std::max(next->first, begin);
    }
    if (missing != 0 && !may_be_taken(missing)) {
        return false;
    }
    if (missing != 0) {
        take(begin, end, fill_bytes);
    }
    return true;
}

void Unwritten::forget(const void* at, size_t size) {
    if (none() || forked_child()) {
        return;
    }
    const uintptr_t begin = address_of(at);
    const std::lock_guard lock(mutex_);
    take(begin, begin + size, [](uintptr_t, uintptr_t, unsigned char) {});
}

std::vector<Unwritten::Hole> Unwritten::holes(const void* at, size_t size) const {
    std::vector<Hole> found;
    if (none() || forked_child()) {
        return found;
    }
    const uintptr_t begin = address_of(at);
    const uintptr_t end = begin + size;
    const std::lock_guard lock(mutex_);
    for (auto next = first_behind(begin); next != ranges_.end() && next->first < end; ++next) {
        const uintptr_t first = std::max(next->first, begin);
        found.push_back(
            {first - begin, std::min(next->second.end, end) - first, next->second.byte});
    }
    return found;
}

void Unwritten::open_to_others(const Physical& memory) {
    memory.open_to_others();
    // Whoever notes a range looks at the mark while it holds the mutex.
    const std::lock_guard lock(mutex_);
    if (ranges_.empty()) {
        return;
    }
    for (const Allocation& mapping : Memory::instance().mappings_of(memory)) {
        take(mapping.base, mapping.base + mapping.mapped,
             [](uintptr_t begin, uintptr_t end, unsigned char byte) {
                 if (may_be_taken(end - begin)) {
                     fill_bytes(begin, end, byte);
                 }
             });
    }
}

void move_bytes(void* to, const void* from, size_t size) {
    Unwritten& unwritten = Unwritten::instance();
    const auto holes = unwritten.holes(from, size);
    unwritten.forget(to, size);
    auto* const out = static_cast<char*>(to);
    const auto* const in = static_cast<const char*>(from);
    const bool overlap = out < in + size && in < out + size;
    if (holes.empty() || overlap) {
        std::memmove(to, from, size);
    }
    size_t done = 0;
    for (const Unwritten::Hole& hole : holes) {
        if (!overlap) {
            std::memcpy(out + done, in + done, hole.offset - done);
        }
        unwritten.put(out + hole.offset, hole.size, hole.byte);
        done = hole.offset + hole.size;
    }
    if (!holes.empty() && !overlap) {
        std::memcpy(out + done, in + done, size - done);
    }
}

void set_bytes(void* at, int value, size_t size) {
    Unwritten::instance().forget(at, size);
    std::memset(at, value, size);
}

EMU_EXPORT int emu_unwritten_note(void* at, size_t size, unsigned char byte) {
    return or_else(0, [&] { return Unwritten::instance().note(at, size, byte) ? 1 : 0; });
}

EMU_EXPORT int emu_unwritten_any(void) {
    return Unwritten::instance().none() ? 0 : 1;
}

EMU_EXPORT void emu_unwritten_put(void* at, size_t size, unsigned char byte) {
    try {
        Unwritten::instance().put(at, size, byte);
    } catch (...) {
        std::memset(at, byte, size);
    }
}

EMU_EXPORT size_t emu_unwritten_list(const void* at, size_t size, emu_hole* holes, size_t room) {
    return or_else(size_t{0}, [&] {
        const auto found = Unwritten::instance().holes(at, size);
        std::copy_n(found.begin(), std::min(room, found.size()), holes);
        return found.size();
    });
}

EMU_EXPORT int emu_memory_is_open(const void* at, size_t size) {
    const uintptr_t begin = address_of(at);
    return is_of_this_process_alone(begin, begin + size) ? 0 : 1;
}

EMU_EXPORT int emu_unwritten_any_in(const void* at, size_t size) {
    return Unwritten::instance().any(at, size) ? 1 : 0;
}

EMU_EXPORT int emu_unwritten_fill(const void* at, size_t size) {
    return or_else(0, [&] { return Unwritten::instance().fill(at, size) ? 1 : 0; });
}

EMU_EXPORT void emu_unwritten_forget(const void* at, size_t size) {
    try {
        Unwritten::instance().forget(at, size);
    } catch (...) {
        // Without memory for the rest of a range it stays, and nothing better can be done.
    }
}

} // namespace tracehook::rehearsal::cuda
