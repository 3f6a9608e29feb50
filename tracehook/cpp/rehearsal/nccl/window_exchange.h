// The collective part of a window's registration: what the ranks tell each other about their
// memory.
//
// The k-th exchange of a rank meets the k-th of the others; there is no other key. On a calling
// thread, which holds the guard or has the communicator in progress, and waits for all ranks: until
// they come, the communicator is aborted, or the time is up, which is a failure of the
// communicator.
#pragma once

#include "communicator.h"
#include "windows.h"

#include <memory>

namespace tracehook::rehearsal::nccl {

// One rank's memory, and the window it wants on it.
struct Offer {
    Extent memory;
    Pieces pieces;
    bool whole; // false: only a part of what the window needs
    std::size_t window_bytes;
    int flags;
    std::int32_t known; // position at which this rank has the memory already; 0: it has not
};

// Rules W1 to W4 and W10. On success the memory is in the communicator's table of windows, or was:
// if all ranks know theirs, from one and the same exchange.
Result exchange(Communicator& communicator, const Offer& offer,
                std::shared_ptr<const MappedMemory>& mapped);

} // namespace tracehook::rehearsal::nccl
