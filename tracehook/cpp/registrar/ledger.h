// The ledger: which segments live now, per device.
//
// Not thread-safe: the registrar's mutex guards it. Segments come in from two sources, the
// allocator's events (the truth, in order) and one snapshot taken after the tracker was attached
// (for what is older than the tracker).
#pragma once

#include "registrar/segment.h"

#include <map>
#include <optional>
#include <set>
#include <vector>

namespace tracehook::registrar {

// What is known of a segment besides its place.
struct Nature {
    MemoryKind memory = MemoryKind::kUnknown;
    PoolKind pool = PoolKind::kDefault;
    std::uint16_t left_out = 0;
};

class Ledger {
  public:
    // Takes out the live segments that a new one overlaps: their free was never seen.
    std::vector<Segment> take_stale(int device, std::uintptr_t address, std::size_t size);
    Segment allocated(int device, std::uintptr_t address, std::size_t size,
                      const Nature& nature = {});

    // The segment that starts at `address`; nothing if none does.
    std::optional<Segment> freed(int device, std::uintptr_t address);

    // Takes out what has a part in that memory, on any device.
    std::vector<Segment> take_in(std::uintptr_t address, std::size_t size);

    // After a segment left the ledger and no communicator holds it any more: its slot may be used
    // again.
    void release_slot(const Segment& segment);

    // Between begin_adoption() and end_adoption() every free leaves a tombstone, so that a segment
    // which stands in the snapshot but was freed before the snapshot was worked through is not
    // brought back to life.
    void begin_adoption();
    bool adopting() const noexcept { return adopting_; }
    std::optional<Segment> adopt(int device, std::uintptr_t address, std::size_t size,
                                 const Nature& nature = {});
    void end_adoption();

    std::vector<Segment> segments(int device) const; // by ascending address
    std::vector<Segment> all() const;
    std::optional<Segment> at(std::uintptr_t address) const noexcept; // any address inside it
    std::size_t count() const noexcept;
    std::size_t bytes() const noexcept { return bytes_; }

    // Changes with every segment that comes or goes; lets a caller compare without holding a lock
    // meanwhile.
    std::uint64_t version() const noexcept { return version_; }

  private:
    using ByAddress = std::map<std::uintptr_t, Segment>;

    std::vector<Segment> take_overlapping(ByAddress& live, std::uintptr_t begin,
                                          std::uintptr_t end);
    const Segment& insert(int device, std::uintptr_t address, std::size_t size,
                          const Nature& nature);
    void removed(const Segment& segment) noexcept;

    std::map<int, ByAddress> devices_;
    std::set<std::pair<int, std::uintptr_t>> tombstones_;
    bool adopting_ = false;
    std::uint64_t next_id_ = 1;
    std::uint32_t next_slot_ = 0;
    std::vector<std::uint32_t> free_slots_;
    std::uint64_t version_ = 0;
    std::size_t bytes_ = 0;
};

} // namespace tracehook::registrar
