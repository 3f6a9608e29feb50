#include "backing.h"

#include "devices.h"

#include <algorithm>
#include <iterator>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr size_t kMinimumLength = 1UL << 40;
constexpr int kReservation = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

} // namespace

// The window lies where the system puts it, so that the ranks of a rehearsal have different
// addresses, as on real devices.
Backing::Backing() : capacity_(device_capacity() / kGranularity * kGranularity) {
    // Twice what can be used, so that fragmentation is not taken for a full device.
    length_ = std::max(kMinimumLength, 2 * capacity_ * static_cast<size_t>(device_count()));
    file_ = memfd_create("tracehook-device-memory", MFD_CLOEXEC);
    if (file_ < 0 || ftruncate(file_, static_cast<off_t>(word_of(length_))) != 0) {
        return;
    }
    base_ = static_cast<char*>(reserve(length_, kGranularity));
    if (base_ != nullptr) {
        free_.emplace(0, length_);
    }
}

std::optional<uint64_t> Backing::take(size_t size, bool last) {
    const std::lock_guard lock(mutex_);
    const auto fits = [size](const auto& range) { return range.second >= size; };
    auto fit = std::ranges::find_if(free_, fits);
    if (fit == free_.end()) {
        return std::nullopt;
    }
    if (last) {
        fit = std::prev(std::find_if(free_.rbegin(), free_.rend(), fits).base());
    }
    const auto [begin, available] = *fit;
    free_.erase(fit);
    if (available > size) {
        free_.emplace(last ? begin : begin + size, available - size);
    }
    return last ? begin + available - size : begin;
}

void Backing::give_back(uint64_t offset, size_t size) {
    // Before the range can be taken again: the next owner must find zeros.
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(size));
    const std::lock_guard lock(mutex_);
    auto next = free_.lower_bound(offset);
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == offset) {
            offset = before->first;
            size += before->second;
            free_.erase(before);
        }
    }
    if (next != free_.end() && offset + size == next->first) {
        size += next->second;
        next = free_.erase(next);
    }
    free_.emplace_hint(next, offset, size);
}

bool Backing::charge(size_t size, int device) {
    const std::lock_guard lock(mutex_);
    if (size > capacity_ - used_[device]) {
        return false;
    }
    used_[device] += size;
    return true;
}

void Backing::discharge(size_t size, int device) {
    const std::lock_guard lock(mutex_);
    used_[device] -= size;
}

void Backing::unmap(void* address, size_t size) {
    static_cast<void>(mmap(address, size, PROT_NONE, kReservation | MAP_FIXED, -1, 0));
}

void* Backing::reserve(size_t size, size_t alignment, void* wanted) {
    if (wanted != nullptr) {
        void* const there =
            mmap(wanted, size, PROT_NONE, kReservation | MAP_FIXED_NOREPLACE, -1, 0);
        if (there != MAP_FAILED) {
            return there;
        }
    }
    void* const raw = mmap(nullptr, size + alignment, PROT_NONE, kReservation, -1, 0);
    if (raw == MAP_FAILED) {
        return nullptr;
    }
    const auto start = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = (start + alignment - 1) / alignment * alignment;
    if (aligned > start) {
        munmap(raw, aligned - start);
    }
    munmap(reinterpret_cast<void*>(aligned + size), start + alignment - aligned);
    return reinterpret_cast<void*>(aligned);
}

size_t Backing::used(int device) const {
    const std::lock_guard lock(mutex_);
    return used_[device];
}

} // namespace tracehook::rehearsal::cuda
