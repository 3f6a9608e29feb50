// The table of all handles (ncclComm_t) this process was ever given.
//
// A handle is looked up, never looked into, so one that is dead or was never given is recognised,
// not a crash. A new communicator takes the address that died last, as happens with the real
// library, to provoke clients that take an address for an identity. Any thread; the table's lock
// comes after every other but those of the registrations and the counts.
#pragma once

#include "communicator.h"
#include "names.h"

#include <memory>
#include <vector>

namespace tracehook::rehearsal::nccl {

// Exactly one is set for a handle that was given: the live communicator, or the call that ended it.
struct Found {
    std::shared_ptr<Communicator> communicator;
    const char* ended_by = nullptr;
    int rank = -1;
    std::uint64_t key = 0; // in tracehook's log
};

Comm open_handle(const std::shared_ptr<Communicator>& communicator);
void close_handle(const Communicator& communicator, const char* ended_by);
Found find_handle(Comm handle);

std::vector<std::shared_ptr<Communicator>> live_communicators();

} // namespace tracehook::rehearsal::nccl
