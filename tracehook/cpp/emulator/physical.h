// Device memory without an address: a range of a file.
//
// Plain memory is a range of the one file of its process (backing.h). Shareable memory has a file
// of its own, so that the system ends it exactly when its last holder is gone, whichever process
// that is and however it ended: a descriptor that was exported, or a mapping.
//
// Any thread, except in a forked child, which does not inherit the descriptors of shareable memory.
// Never throws, apart from std::bad_alloc.
#pragma once

#include "cuda_abi.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tracehook::emulator {

class Physical {
  public:
    using Pointer = std::shared_ptr<const Physical>;

    // Zeroed; `size` is a multiple of kGranularity. Null if the device is full.
    static Pointer plain(size_t size, int device);
    static Pointer shareable(size_t size, int device);

    // The memory behind a descriptor that `share` gave, here or in another process. The caller
    // keeps its descriptor. kInvalidValue if it is none, kInvalidDevice if the device is not
    // visible here.
    static Status import(int descriptor, Pointer& memory);

    ~Physical();
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;

    // A new descriptor for other processes; -1 if the memory is plain, or the process has too many.
    int share() const;

    // Maps [offset, offset + size) of it over reserved addresses, without any access.
    bool map(void* address, size_t offset, size_t size) const;

    int file() const { return file_; }
    uint64_t offset() const { return offset_; } // of its first byte in the file
    size_t size() const { return size_; }
    int device() const { return device_; }
    bool is_shareable() const { return origin_ != Origin::kPlain; }

  private:
    enum class Origin { kPlain, kShareable, kImported };

    Physical(Origin origin, int file, uint64_t offset, size_t size, int device);

    const Origin origin_;
    const int file_;
    const uint64_t offset_;
    const size_t size_;
    const int device_;
};

} // namespace tracehook::emulator
