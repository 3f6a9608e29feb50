// What stands in front of NCCL's functions, for the files that define it: interpose.cpp (operations
// and groups), lifecycle.cpp (communicators), registrations_of_others.cpp. The contract of all of
// them is in interpose.h.
#pragma once

#include "core/registrar.h"
#include "nccl/abi.h"
#include "nccl/api.h"
#include "nccl/group.h"
#include "nccl/placement.h"

namespace tracehook::nccl {

// Whom the wrappers tell. Not before install_interposer().
core::Registrar& registrar() noexcept;

#define GUARDED(...)
#define PLACED(...)
#define LIFECYCLE(name, ...) int on_##name(__VA_ARGS__);
#include "nccl/calls.def"
#undef GUARDED
#undef PLACED
#undef LIFECYCLE

// `communicator`: the thread keeps it meanwhile. `entered`: whether we are inside its gate.
// `lands`: the call was counted, and is in flight.
template <auto Real, bool lands, typename... Args>
int called(const core::CommunicatorPtr& communicator, bool entered, Args... args) {
    const auto real = api().*Real;
    if (!entered) {
        return real(args...);
    }
    const int result = real(args...);
    if (ThreadGroup& group = ThreadGroup::mine(); group.open()) {
        group.touched(communicator);
    }
    if constexpr (lands) {
        communicator->windows().land();
    }
    communicator->gate().leave();
    return result;
}

template <auto Real, typename... Args>
int inside(const core::CommunicatorPtr& communicator, Args... args) {
    if (communicator && communicator->refusal() != nullptr) {
        return check_refusal(*communicator);
    }
    return called<Real, false>(communicator,
                               communicator && communicator->gate().enter(*communicator), args...);
}

} // namespace tracehook::nccl
