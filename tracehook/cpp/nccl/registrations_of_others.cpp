// Registrations, windows and device communicators that torch or the program makes itself.
#include "nccl/window_guard.h"
#include "nccl/wrappers.h"

namespace tracehook::nccl {

namespace {

// torch makes them in its tracker, with its own lock and the allocator's held, and before an abort:
// to wait there without end for a thread that hangs in NCCL would keep the abort away.
template <auto Real, typename... Args>
int by_others(const registrar::CommunicatorPtr& communicator, Args... args) {
    return called<Real, false>(communicator,
                               communicator && communicator->gate().enter_soon(*communicator),
                               Uncounted{}, args...);
}

// Past the gate altogether: we register nothing with such a communicator that could be met there.
bool is_observed(const registrar::CommunicatorPtr& communicator) noexcept {
    return communicator && communicator->identity().local == registrar::Local::kObserved;
}

} // namespace

int on_ncclCommRegister(Comm comm, void* buffer, std::size_t size, void** handle) {
    const registrar::CommunicatorPtr& found = registrar().find(comm);
    if (!is_observed(found)) {
        return by_others<&Api::ncclCommRegister>(found, comm, buffer, size, handle);
    }
    const registrar::CommunicatorPtr communicator = found; // the ledger is asked meanwhile
    const registrar::InProgress::Call call(communicator->segments_in_progress());
    const std::uint64_t begin_ns = events::monotonic_ns();
    const int result = api().ncclCommRegister(comm, buffer, size, handle);
    const std::uint64_t now_ns = events::monotonic_ns();
    void* const given = result == kSuccess && handle != nullptr ? *handle : nullptr;
    registrar().observed(communicator, {reinterpret_cast<std::uintptr_t>(buffer), size, given,
                                        result, now_ns, now_ns - begin_ns});
    return result;
}

int on_ncclCommDeregister(Comm comm, void* handle) {
    const registrar::CommunicatorPtr& found = registrar().find(comm);
    if (!is_observed(found)) {
        return by_others<&Api::ncclCommDeregister>(found, comm, handle);
    }
    const registrar::CommunicatorPtr communicator = found;
    const std::uint64_t begin_ns = events::monotonic_ns();
    const int result = api().ncclCommDeregister(comm, handle);
    const std::uint64_t now_ns = events::monotonic_ns();
    registrar().unobserved(communicator, {0, 0, handle, result, now_ns, now_ns - begin_ns});
    return result;
}

int on_ncclCommWindowRegister(Comm comm, void* buffer, std::size_t size, Window* window,
                              int flags) {
    const registrar::CommunicatorPtr communicator = registrar().find(comm);
    const auto make = [&] {
        return inside<&Api::ncclCommWindowRegister>(communicator, comm, buffer, size, window,
                                                    flags);
    };
    if (!communicator || communicator->refuses() || window == nullptr) {
        return make();
    }
    return register_guarded({communicator, buffer, size, flags, window, ThreadGroup::mine().open()},
                            make);
}

int on_ncclCommWindowDeregister(Comm comm, Window window) {
    const registrar::CommunicatorPtr communicator = registrar().find(comm);
    const std::uint64_t begin_ns = events::monotonic_ns();
    const windows::Window taken =
        communicator ? windows::of(*communicator).take_window_of_others(window) : windows::Window{};
    const int result = by_others<&Api::ncclCommWindowDeregister>(communicator, comm, window);
    const std::uint64_t now_ns = events::monotonic_ns();
    if (communicator) {
        windows::of(*communicator)
            .log_window_of_others_ended(
                {taken.address, taken.size, window, result, now_ns, now_ns - begin_ns});
    }
    return result;
}

// A collective call: it waits for the other ranks as a window does.
int on_ncclDevCommCreate(Comm comm, const DevCommRequirements* requirements, DevComm* made) {
    const registrar::CommunicatorPtr communicator = registrar().find(comm);
    const auto make = [&] {
        return inside<&Api::ncclDevCommCreate>(communicator, comm, requirements, made);
    };
    if (!communicator || communicator->refuses()) {
        return make();
    }
    windows::of(*communicator).device_communicator_begins();
    const std::uint64_t begin_ns = events::monotonic_ns();
    const int result = make();
    windows::of(*communicator)
        .device_communicator_created(result == kInProgress ? kSuccess : result,
                                     events::monotonic_ns() - begin_ns);
    return result;
}

// This rank's own act.
int on_ncclDevCommDestroy(Comm comm, const DevComm* made) {
    const registrar::CommunicatorPtr communicator = registrar().find(comm);
    const std::uint64_t begin_ns = events::monotonic_ns();
    const int result = by_others<&Api::ncclDevCommDestroy>(communicator, comm, made);
    if (communicator) {
        windows::of(*communicator)
            .device_communicator_destroyed(result, events::monotonic_ns() - begin_ns);
    }
    return result;
}

} // namespace tracehook::nccl
