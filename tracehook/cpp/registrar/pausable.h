// Memory that a library may take away, and put other memory in its place, while torch keeps the
// segment: a server's sleep mode, for instance. The driver knows of it, and the allocator does not.
//
// A segment whose memory goes is out of the ledger, and sleeps here. When it has memory again, it
// comes back as a new segment: whatever was known of the old memory holds no more.
//
// Not thread-safe: the registrar's mutex guards it.
#pragma once

#include "registrar/ranges.h"
#include "registrar/segment.h"

#include <map>
#include <optional>
#include <vector>

namespace tracehook::registrar {

class Pausable {
  public:
    // What a library has mapped by itself.
    bool has(std::uintptr_t address) const noexcept { return mapped_.at(address).has_value(); }
    bool has_part_of(std::uintptr_t address, std::size_t size) const noexcept {
        return mapped_.any_in(kAnywhere, address, size);
    }

    // Returns the segments that have all their memory again, and forgets them.
    std::vector<Segment> mapped(std::uintptr_t address, std::size_t size);
    // `segments` lose memory now, and are not in the ledger any more. Those that sleep may lose
    // more.
    void unmapped(std::uintptr_t address, std::size_t size, const std::vector<Segment>& segments);

    // The segment that sleeps there, which the allocator frees.
    std::optional<Segment> freed(int device, std::uintptr_t address);
    std::vector<Segment> asleep() const;                                  // by address
    std::uint64_t version() const noexcept { return missing_.version(); } // changes with these

  private:
    using Place = std::map<std::uintptr_t, Segment>::iterator;

    // The first that sleeps and ends behind `address`: a server may have very many.
    Place first_behind(std::uintptr_t address) noexcept;

    // The driver's addresses are those of all devices.
    static constexpr int kAnywhere = 0;

    Ranges mapped_;
    Ranges missing_; // parts of segments that sleep
    std::map<std::uintptr_t, Segment> asleep_;
};

} // namespace tracehook::registrar
