// One thing that happened, as the ring keeps it: fixed size, no pointers, readable from the file by
// another process.
#pragma once

#include <cstdint>

namespace tracehook::core {

enum class EventKind : std::uint16_t {
#define EVENT(enumerator, ...) enumerator,
#include "events/events.def"
#undef EVENT
    kCount,
};

// The public name ("register.local") of a kind; "unknown" for a number outside the table.
const char* event_name(EventKind kind) noexcept;

// In `extra` of register.window: a stream of the device was being captured; the call was not
// tracehook's (also of deregister.window); NCCL makes the window later. The rest is the pool.
constexpr std::uint32_t kWhileCapturing = 1u << 31;
constexpr std::uint32_t kWindowOfOthers = 1u << 30;
constexpr std::uint32_t kWindowLater = 1u << 29;

// Fields that do not apply are zero (device: -1). 96 bytes, little endian; `log/ring.py` reads
// the same layout.
struct Event {
    std::uint64_t seq = 0;     // per process, given by the ring; a gap means loss
    std::uint64_t t_ns = 0;    // CLOCK_MONOTONIC, given by the ring
    std::uint64_t comm = 0;    // rank-invariant key of the communicator
    std::uint64_t segment = 0; // process-local segment id, never reused
    std::uint64_t address = 0; // first byte
    std::uint64_t size = 0;    // bytes
    std::uint64_t thread = 0;  // kernel id of the thread that caused it, given by the ring
    std::uint64_t value = 0;   // see fields_of() in log/ring.py
    std::uint64_t duration_ns = 0;
    std::uint32_t comm_id = 0;  // process-local communicator id, never reused
    std::uint32_t comm_seq = 0; // counts per communicator, from 1
    std::int32_t result = 0;    // 0, or the backend's error number
    std::int32_t rank = -1;     // in the communicator
    EventKind kind = EventKind::kCount;
    std::int16_t device = -1;
    std::uint32_t extra = 0; // see fields_of() in log/ring.py
};
static_assert(sizeof(Event) == 96, "the ring's file format depends on it");

} // namespace tracehook::core
