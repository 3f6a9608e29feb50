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
inline constexpr std::size_t kMemoryKinds = 0
#define MEMORY_KIND(...) +1
#include "events/memory_kinds.def"
#undef MEMORY_KIND
    ;

// From which of the allocator's pools it is.
enum class PoolKind : std::uint8_t {
#define POOL_KIND(enumerator, ...) enumerator,
#include "events/pool_kinds.def"
#undef POOL_KIND
};

// What a registration is for. NCCL before 2.29 knows no address of a peer's memory for a collective
// if a send or a receive was the first to use the registration, and the collective hangs. So each
// of the two has registrations of its own. An all_to_all is made of sends and receives.
enum class RegisteredFor : std::uint8_t { kCollectives, kTransfers, kNothing };
inline constexpr std::size_t kRegisteredFor = 2; // without kNothing

struct Segment {
    std::uint64_t id = 0;   // never reused; an address is
    std::uint32_t slot = 0; // below the largest number of segments that ever lived at once; reused
    int device = -1;
    std::uintptr_t address = 0; // first byte
    std::size_t size = 0;       // bytes
    MemoryKind memory = MemoryKind::kUnknown;
    PoolKind pool = PoolKind::kDefault;
    std::uint16_t left_out = 0; // by which rules (segment_rules.h): bits

    std::uintptr_t end() const noexcept { return address + size; }
};

} // namespace tracehook::registrar
