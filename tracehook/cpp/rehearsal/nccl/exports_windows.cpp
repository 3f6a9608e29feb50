// The exported functions about windows, and about the device communicators that use them.
#include "calls.h"
#include "entry.h"
#include "exports.h"
#include "group.h"
#include "settings.h"

#include <utility>

using namespace tracehook::rehearsal::nccl;

namespace {

constexpr std::uintptr_t kMultiple = 2UL << 20;

Result no_device_side(const Entry& entry) {
    return entry.refused()
               ? entry.result()
               : failed(kInvalidUsage, std::string(entry.call()) +
                                           ": the emulated NCCL runs nothing on the device");
}

} // namespace

TRACEHOOK_NCCL(Result, ncclCommWindowRegister, Comm handle, void* buffer, std::size_t size,
               Window* window, int flags) {
    const Entry entry("ncclCommWindowRegister", handle, Access::kUse);
    if (entry.refused()) {
        if (entry.fault().result != kSuccess && entry.communicator() != nullptr) {
            entry.communicator()->windows().poison();
        }
        return note(entry.result());
    }
    if (window == nullptr || buffer == nullptr || size == 0) {
        return note(failed(kInvalidArgument, "ncclCommWindowRegister: null or empty"));
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer);
    const Extent extent{begin, begin + size};
    if (has(Trait::kNoOddWindows) && (begin | size) % kMultiple != 0) {
        *window = nullptr;
        return note(kSuccess);
    }
    if (settings().windows == WindowMode::kNull) {
        return register_unsupported(*entry.communicator(), extent, window);
    }
    return submit(entry.call(),
                  WindowRequest{entry.communicator(), extent, flags, window, entry.holding()});
}

// Acts at once, also inside a group, and on this rank alone: NCCL looks at no state.
TRACEHOOK_NCCL(Result, ncclCommWindowDeregister, Comm handle, Window window) {
    const Entry entry("ncclCommWindowDeregister", handle, Access::kBooks);
    if (entry.refused() || window == nullptr) {
        return entry.result();
    }
    return deregister_window(*entry.communicator(), window);
}

TRACEHOOK_NCCL(Result, ncclWinGetUserPtr, Comm handle, Window, void**) {
    return no_device_side(Entry("ncclWinGetUserPtr", handle, Access::kUse));
}

TRACEHOOK_NCCL(Result, ncclGetPeerDevicePointer, Window, std::size_t, int, void**) {
    return no_device_side(Entry("ncclGetPeerDevicePointer"));
}

TRACEHOOK_NCCL(Result, ncclGetLsaMultimemDevicePointer, Window, std::size_t, void**) {
    return no_device_side(Entry("ncclGetLsaMultimemDevicePointer"));
}

// One-sided operations, which need windows that other ranks write to on their own.
TRACEHOOK_NCCL(Result, ncclPutSignal, const void*, std::size_t, DataType, int, Window, std::size_t,
               int, int, unsigned, Comm handle, Stream) {
    return no_device_side(Entry("ncclPutSignal", handle, Access::kUse));
}

TRACEHOOK_NCCL(Result, ncclSignal, int, int, int, unsigned, Comm handle, Stream) {
    return no_device_side(Entry("ncclSignal", handle, Access::kUse));
}

TRACEHOOK_NCCL(Result, ncclWaitSignal, int, const void*, Comm handle, Stream) {
    return no_device_side(Entry("ncclWaitSignal", handle, Access::kUse));
}

TRACEHOOK_NCCL(Result, ncclDevCommCreate, Comm handle, const void* requirements, void* made) {
    const Entry entry("ncclDevCommCreate", handle, Access::kUse);
    if (entry.refused()) {
        return note(entry.result());
    }
    if (requirements == nullptr || made == nullptr) {
        return note(failed(kInvalidArgument, "ncclDevCommCreate: null"));
    }
    if (settings().windows == WindowMode::kNull) {
        return note(
            failed(kInvalidUsage, "ncclDevCommCreate: the communicator has no symmetric memory"));
    }
    WindowRequest request{entry.communicator(), {}, 0, nullptr, entry.holding()};
    request.is_device_communicator = true;
    return submit(entry.call(), std::move(request));
}

// Acts at once, also inside a group, and on this rank alone.
TRACEHOOK_NCCL(Result, ncclDevCommDestroy, Comm handle, const void*) {
    const Entry entry("ncclDevCommDestroy", handle, Access::kBooks);
    if (entry.refused() || entry.communicator()->remove_device_communicator()) {
        return entry.result();
    }
    return failed(kInvalidUsage, "ncclDevCommDestroy: no device communicator lives");
}
