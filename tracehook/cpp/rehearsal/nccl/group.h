// ncclGroupStart and ncclGroupEnd: what this thread asked for since, carried out together at the
// outermost end.
//
// Births come first, then windows, then operations. A call outside a group is a group of its own.
// State is per thread; no locks. If a call within the group failed, the end returns that failure
// and carries out nothing.
#pragma once

#include "communicator.h"
#include "launch.h"
#include "names.h"
#include "window_registration.h"

#include <chrono>
#include <functional>
#include <memory>

namespace tracehook::rehearsal::nccl {

// The birth of a communicator, which waits for other ranks. `out` is written when the job is
// carried out.
struct Job {
    // Joins the other ranks; sets `child`, or leaves it null when this rank has no part in it.
    std::function<Result(std::shared_ptr<Communicator>& child)> work;
    // For a non-blocking job made beforehand, so that its handle exists at once; null if there will
    // be none.
    std::shared_ptr<Communicator> child;
    // Is in progress meanwhile; null for none.
    std::shared_ptr<Communicator> parent;
    Comm* out;
    bool blocking;
    std::chrono::microseconds holding;
};

void group_start();
// `launches`: not of ncclGroupSimulateEnd, which makes communicators and no more.
Result group_end(const char* call = "ncclGroupEnd", bool launches = true);

// Keeps the work for the end of the group, or carries it out now if there is no group.
Result submit(const char* call, Request request);
Result submit(const char* call, WindowRequest request);
Result submit(Job job);

// Remembers a failed call for the end of the group; returns `result`.
Result note(Result result);

} // namespace tracehook::rehearsal::nccl
