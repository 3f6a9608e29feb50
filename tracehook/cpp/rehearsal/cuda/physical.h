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

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tracehook::rehearsal::cuda {

// Bits of what memory can be given to other processes by.
inline constexpr int kFileDescriptor = 1;
inline constexpr int kFabric = 8;

// CUmemFabricHandle. Here: where in /proc the memory's file is found.
struct FabricHandle {
    uint64_t magic;
    uint64_t inode;
    int32_t process;
    int32_t file;
    uint8_t unused[40];
};
static_assert(sizeof(FabricHandle) == 64);

class Physical {
  public:
    using Pointer = std::shared_ptr<const Physical>;

    // Zeroed; `size` is a multiple of kGranularity. Null if the device is full. `types` are the
    // bits of the handles that shareable memory can be given to others by.
    static Pointer plain(size_t size, int device);
    static Pointer shareable(size_t size, int device, int types);

    // The memory behind what `share` gave, here or in another process. The caller keeps its
    // descriptor. kInvalidValue if it is none, kInvalidDevice if the device is not visible here.
    static Status import(int descriptor, Pointer& memory, int types = kFileDescriptor);
    static Status import(const FabricHandle& handle, Pointer& memory);

    ~Physical();
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;

    // A new descriptor for other processes; -1 if the memory was not made for that, or the process
    // has too many.
    int share() const;

    // The same without a descriptor: good while this process has the memory.
    bool share(FabricHandle& handle) const;

    // Maps [offset, offset + size) of it over reserved addresses, without any access.
    bool map(void* address, size_t offset, size_t size) const;

    // Whether somebody else may write to it: another process, or this one by another address. What
    // came from another process is always so.
    void open_to_others() const { open_to_others_.store(true); }
    bool is_open_to_others() const {
        return origin_ == Origin::kImported || open_to_others_.load();
    }

    // The same for what maps it: true if somebody did before.
    bool mark_mapped() const { return mapped_.exchange(true); }

    // No other memory of this process has or had this number, which is above 0.
    uint64_t number() const { return number_; }

    int file() const { return file_; }
    uint64_t offset() const { return offset_; } // of its first byte in the file
    size_t size() const { return size_; }
    int device() const { return device_; }
    bool is_shareable() const { return origin_ != Origin::kPlain; }
    int types() const { return types_; }

  private:
    enum class Origin { kPlain, kShareable, kImported };

    Physical(Origin origin, int types, int file, uint64_t offset, size_t size, int device);

    const Origin origin_;
    const int types_;
    const int file_;
    const uint64_t offset_;
    const size_t size_;
    const int device_;
    const uint64_t number_;
    mutable std::atomic<bool> open_to_others_{false};
    mutable std::atomic<bool> mapped_{false};
};

} // namespace tracehook::rehearsal::cuda
