// A segment: one range of device memory that the caching allocator got from the driver.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tracehook::registrar {

// What a segment's memory is, for those who want to map it.
enum class MemoryKind : std::uint8_t {
#define MEMORY_KIND(enumerator, ...) enumerator,
#include "events/memory_kinds.def"
#undef MEMORY_KIND
};

struct Segment {
    std::uint64_t id = 0;   // never reused; an address is
    std::uint32_t slot = 0; // below the largest number of segments that ever lived at once; reused
    int device = -1;
    std::uintptr_t address = 0; // first byte
    std::size_t size = 0;       // bytes
    MemoryKind memory = MemoryKind::kUnknown;

    std::uintptr_t end() const noexcept { return address + size; }
};

} // namespace tracehook::registrar
