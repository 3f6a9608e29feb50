// Communicators that NCCL suspends: ncclCommSuspend and ncclCommResume, of the program and of ours.
//
// Read in NCCL 2.29.7 and 2.30.7 (src/mem_manager.cc): a suspended communicator has lost buffers of
// its own, at addresses that stay reserved. Windows and registrations stay valid, and so do the
// graphs that hold them. So nothing of these is undone: a registration stays, and one that is new
// waits until the end. NCCL looks at nothing: a kernel that runs meanwhile would meet an address
// without memory. So we refuse such calls (registrar::Communicator::refuses).
#pragma once

#include "registrar/communicator.h"

namespace tracehook::nccl {

// Whether the loaded NCCL can.
bool can_suspend() noexcept;

// Collective, without a deadline, and without the GIL. Each returns NCCL's result. `communicator`
// is not null.
int suspend(const registrar::CommunicatorPtr& communicator);
int resume(const registrar::CommunicatorPtr& communicator);

} // namespace tracehook::nccl
