// What is mapped of expandable segments, per device: ranges that grow, shrink, meet and part.
//
// Not thread-safe: the registrar's mutex guards it. Ranges have no number, because they have no
// identity of their own: two become one when what lies between them is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

namespace tracehook::registrar {

struct Range {
    int device;
    std::uintptr_t address;
    std::size_t size;

    std::uintptr_t end() const noexcept { return address + size; }
};

class Ranges {
  public:
    // What is mapped already, or not mapped, stays as it is.
    void map(int device, std::uintptr_t address, std::size_t size);
    void unmap(int device, std::uintptr_t address, std::size_t size);

    // Between begin_adoption() and end_adoption(): what of a snapshot's range is to be mapped. Not
    // what was unmapped since the beginning, because the snapshot may be older.
    void begin_adoption() { adopting_ = true; }
    std::vector<Range> unknown(int device, std::uintptr_t address, std::size_t size) const;
    void end_adoption();

    std::vector<Range> all() const; // by device and ascending address; neighbours are one
    std::optional<Range> at(std::uintptr_t address) const noexcept; // any address inside it
    bool any_in(int device, std::uintptr_t address, std::size_t size) const noexcept;
    std::size_t bytes() const noexcept { return bytes_; }
    std::uint64_t version() const noexcept { return version_; } // changes with every call

  private:
    using Ends = std::map<std::uintptr_t, std::uintptr_t>; // by begin

    std::map<int, Ends> devices_;
    std::vector<Range> unmapped_; // since begin_adoption()
    bool adopting_ = false;
    std::size_t bytes_ = 0;
    std::uint64_t version_ = 0;
};

} // namespace tracehook::registrar
