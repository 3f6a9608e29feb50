#include "nccl/suspension.h"

#include "events/event.h"
#include "nccl/wrappers.h"

#include <chrono>
#include <thread>

namespace tracehook::nccl {

namespace {

// Inside the gate: makes the call, and tells the gate and the log. A group that is open makes it
// at its end; whoever uses the communicator before that breaks NCCL's rules anyway.
template <typename Call, typename Row>
int change(const registrar::CommunicatorPtr& communicator, const Call& call, const Row& row,
           void (registrar::Gate::*tell)(registrar::Communicator&) noexcept) {
    const std::uint64_t begin_ns = events::monotonic_ns();
    const int result = call();
    const bool took = result == kSuccess || result == kInProgress;
    if (took) {
        (communicator->gate().*tell)(*communicator);
    }
    const std::uint64_t now_ns = events::monotonic_ns();
    communicator->log(events::make_event(row, took ? kSuccess : result,
                                         {.t_ns = now_ns, .duration_ns = now_ns - begin_ns}));
    if (ThreadGroup& group = ThreadGroup::mine(); group.open()) {
        group.touched(communicator);
    }
    communicator->gate().leave();
    return result;
}

// What became of a call that a non-blocking communicator went on with.
int finished(Comm comm, int result) {
    constexpr auto kPoll = std::chrono::milliseconds(1);
    while (result == kInProgress) {
        std::this_thread::sleep_for(kPoll);
        if (const int asked = api().ncclCommGetAsyncError(comm, &result); asked != kSuccess) {
            return asked;
        }
    }
    return result;
}

} // namespace

int on_ncclCommSuspend(Comm comm, int flags) {
    const registrar::CommunicatorPtr communicator = registrar().find(comm);
    const auto call = [&] { return api().ncclCommSuspend(comm, flags); };
    if ((flags & kSuspendMemory) == 0 || !communicator ||
        !communicator->gate().enter(*communicator)) {
        return call();
    }
    const auto memory = communicator->look_at_memory();
    return change(communicator, call,
                  events::row::CommunicatorSuspend{.released = memory ? memory->suspendable : 0},
                  &registrar::Gate::rest);
}

int on_ncclCommResume(Comm comm) {
    const registrar::CommunicatorPtr communicator = registrar().find(comm);
    const auto call = [&] { return api().ncclCommResume(comm); };
    if (!communicator || !communicator->gate().enter(*communicator)) {
        return call();
    }
    return change(communicator, call, events::row::CommunicatorResume{}, &registrar::Gate::wake);
}

bool can_suspend() noexcept {
    return api().ncclCommSuspend != nullptr && version() >= kFirstThatSuspends;
}

int suspend(const registrar::CommunicatorPtr& communicator) {
    const Comm comm = communicator->identity().pointer;
    return finished(comm, on_ncclCommSuspend(comm, kSuspendMemory));
}

int resume(const registrar::CommunicatorPtr& communicator) {
    const Comm comm = communicator->identity().pointer;
    const int result = finished(comm, on_ncclCommResume(comm));
    communicator->gate().poke(); // it may not have been ready when the gate was left
    return result;
}

} // namespace tracehook::nccl
