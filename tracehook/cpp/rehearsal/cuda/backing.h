// The memory behind all emulated devices of the process: one sparse memfd, a window of addresses of
// the same size, and the book of how full the devices are.
//
// The byte at `offset` of the file is the byte at the window's base plus `offset` if it is mapped
// there. Ranges are taken first-fit, so a freed range is soon taken again. Fresh ranges read as
// zero. The file is never shared with a forked child on purpose; another process reaches it through
// /proc/<pid>/fd/<fd>. Memory that has a file of its own (see physical.h) takes only the addresses.
//
// Any thread, except in a forked child. Never throws, apart from std::bad_alloc.
#pragma once

#include "identity.h"
#include "leaked.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace tracehook::rehearsal::cuda {

inline constexpr size_t kGranularity = 2UL << 20;

class Backing {
  public:
    Backing();
    static Backing& instance() { return leaked<Backing>(); }

    // A range of `size` bytes (a multiple of kGranularity), the first that fits or the last. None
    // if the file is full.
    std::optional<uint64_t> take(size_t size, bool last = false);

    // Gives a range back and its pages to the system. The range must not be mapped any more.
    void give_back(uint64_t offset, size_t size);

    // Counts memory of `device` as used, and as free again. False if the device is full.
    bool charge(size_t size, int device);
    void discharge(size_t size, int device);

    // Where in the window a range belongs, and back.
    void* address(uint64_t offset) const { return base_ + offset; }

    uint64_t offset(const void* address) const { return static_cast<const char*>(address) - base_; }

    // Takes away what is mapped at `address`: an access then faults.
    static void unmap(void* address, size_t size);

    // Addresses that nothing else will use, without memory; from `wanted` on if it is not null and
    // those are free. Null if there are none.
    static void* reserve(size_t size, size_t alignment, void* wanted = nullptr);

    int file() const { return file_; }

    // Where in the file a word about the range at `offset` may be kept, for other processes.
    uint64_t word_of(uint64_t offset) const {
        return length_ + offset / kGranularity * sizeof(uint64_t);
    }

    size_t used(int device) const;
    size_t capacity() const { return capacity_; }

  private:
    size_t capacity_;
    size_t length_;
    int file_ = -1;
    char* base_ = nullptr;

    // Protects free_ and used_. Nothing is locked and no system call is made while it is held.
    mutable std::mutex mutex_;
    std::map<uint64_t, size_t> free_;
    std::array<size_t, kMaxDevices> used_{};
};

} // namespace tracehook::rehearsal::cuda
