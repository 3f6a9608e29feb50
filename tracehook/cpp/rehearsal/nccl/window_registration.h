// ncclCommWindowRegister and ncclCommWindowDeregister, and ncclDevCommCreate, which waits and is
// put off as a window is.
//
// Registering is collective and waits for the other ranks; it is put off to the end of a group.
// What a rank finds wrong with its own memory it says before the exchange, so that the others wait
// for it in vain, as they do on hardware. After a failure no more windows can be made on the
// communicator (rule W12). Deregistering is local and immediate.
#pragma once

#include "communicator.h"
#include "entry.h"

#include <chrono>
#include <memory>
#include <vector>

namespace tracehook::rehearsal::nccl {

struct WindowRequest {
    std::shared_ptr<Communicator> communicator;
    Extent extent;
    int flags;
    Window* out; // written when the window is made
    std::chrono::microseconds holding;
    bool is_device_communicator = false; // instead of a window
};

// Carries out the requests of one group (or of one call), communicators in the order of their keys,
// and stops at the first failure. `guarded`: takes the guard of each communicator meanwhile; not
// for those that are in progress.
Result register_windows(const char* call, std::vector<WindowRequest> requests, bool guarded);

// What a communicator without symmetric support answers.
Result register_unsupported(Communicator& communicator, Extent extent, Window* out);

Result deregister_window(Communicator& communicator, Window window);

} // namespace tracehook::rehearsal::nccl
