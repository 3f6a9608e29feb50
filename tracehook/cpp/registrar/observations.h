// What somebody else, torch by itself, has registered with one communicator: recorded as it is
// seen, never made or undone here.
//
// Any thread; nothing is locked, logged or called while its mutex is held, which comes after the
// registrar's.
#pragma once

#include "registrar/segment.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace tracehook::registrar {

// One call that registered a range, or undid that.
struct Observation {
    std::uintptr_t address = 0; // of a registration
    std::size_t size = 0;
    void* handle = nullptr;
    int result = 0;
    std::uint64_t t_ns = 0; // when it returned
    std::uint64_t duration_ns = 0;
};

class Observations {
  public:
    void put(const Segment& segment, void* handle);
    // The segment that the handle stands for, no longer held.
    std::optional<Segment> take(void* handle) noexcept;
    bool holds(const Segment& segment) const noexcept;
    std::size_t size() const noexcept;
    void clear() noexcept;

  private:
    mutable std::mutex mutex_;
    // By handle: the library gives the same one for a range that it has already.
    std::unordered_multimap<void*, Segment> held_;
    // How many handles a segment has, by its id: asked at every free, under the allocator's lock.
    std::unordered_map<std::uint64_t, std::size_t> handles_of_;
};

} // namespace tracehook::registrar
