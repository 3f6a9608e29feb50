// Where a collective's buffers lie: in which window of the communicator, and where in it.
//
// NCCL takes its symmetric kernels if the buffers *begin* in windows, and each rank then reads its
// peers' memory at its own (window, offset). So all ranks have to use the same place; what has to
// be the same depends on the operation and is said by the table of calls (nccl/calls.def).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tracehook::windows {

// How one side of an operation is compared between ranks.
enum class Compare : std::uint8_t {
    kNothing, // this rank's own affair (a root's buffer)
    kWhether, // in a window or not
    kWhere,   // the same window, the same offset
};

struct Side {
    const void* buffer = nullptr;
    std::size_t size = 0; // bytes
    Compare compare = Compare::kNothing;
};

struct Place {
    static constexpr std::uint32_t kNone = 0;
    static constexpr std::uint32_t kOverrun = 0xffffffff; // begins in a window and ends outside it

    std::uint32_t window = kNone; // 1 + the window's ordinal on the communicator
    std::uint64_t offset = 0;     // bytes from the window's first

    bool operator==(const Place&) const = default;
};

// What the ranks compare: the places, reduced to what has to be equal.
struct Use {
    std::uint32_t operation = 0; // row of the table of operations
    std::uint32_t config = 0;    // what the program set for the call; 0: nothing
    Place send;
    Place receive;

    bool operator==(const Use&) const = default;
};

} // namespace tracehook::windows
