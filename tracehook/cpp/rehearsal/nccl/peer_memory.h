// Memory that one rank lets the others read.
//
// A rank publishes a buffer, tells the others where it is, and keeps the publication until all have
// read it. Readers only ever read, so a rank's memory is written by nobody but itself.
#pragma once

#include "rehearsal/cuda/device.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tracehook::rehearsal::nccl {

// Byte 0 is at `offset` of file `file` of process `process`.
struct SharedRange {
    std::int32_t process;
    std::int32_t file; // -1: there is nothing to read
    std::uint64_t offset;
    std::uint64_t bytes;
};

class Publication {
  public:
    // Device memory is published where it lies. Host memory, and a range over several allocations,
    // is copied. What is unwritten there (rehearsal/cuda/unwritten.h) is filled, or listed if that
    // is too much.
    Publication(const void* pointer, std::size_t size);
    ~Publication();
    Publication(const Publication&) = delete;
    Publication& operator=(const Publication&) = delete;

    // False if the memory could not be read.
    bool valid() const { return valid_; }
    const SharedRange& range() const { return range_; }
    SharedRange holes() const { return holes_ == nullptr ? SharedRange{} : holes_->range_; }

  private:
    bool copy(const void* pointer, std::size_t size);
    void list_holes(const void* pointer, std::size_t size);

    SharedRange range_{};
    std::unique_ptr<const Publication> holes_;
    int copy_ = -1;
    bool valid_ = true;
};

// What a rank did not write of the memory that it published.
class Holes {
  public:
    explicit Holes(const SharedRange& list);

    // Makes of `size` bytes at `out`, which were read from byte `offset` on, what they stand for.
    void put(std::size_t offset, std::byte* out, std::size_t size) const;

  private:
    std::vector<emu_hole> all_;
};

class PeerMemory {
  public:
    explicit PeerMemory(const SharedRange& range);
    ~PeerMemory();
    PeerMemory(PeerMemory&& other) noexcept;
    PeerMemory(const PeerMemory&) = delete;
    PeerMemory& operator=(const PeerMemory&) = delete;

    // False if the process is gone, the range is shorter, or `out` is not mapped.
    bool read(std::size_t offset, void* out, std::size_t size) const;

  private:
    SharedRange range_;
    int file_;
};

} // namespace tracehook::rehearsal::nccl
