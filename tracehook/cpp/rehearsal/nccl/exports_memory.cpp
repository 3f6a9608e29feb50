// The exported functions that have to do with memory: local registration, allocation and operators.
#include "calls.h"
#include "entry.h"
#include "exports.h"
#include "nccl/caller.h"
#include "operation.h"
#include "reduction.h"
#include "rehearsal/cuda/device.h"
#include "settings.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <unistd.h>

using namespace tracehook::rehearsal::nccl;

namespace {

constexpr int kScalarDevice = 0; // ncclScalarResidence_t

// Rule L3. The first byte of [begin, end) that is not mapped on `device`, or 0.
std::uintptr_t first_foreign(std::uintptr_t begin, std::uintptr_t end, int device, int* found) {
    while (begin < end) {
        std::uintptr_t base = 0;
        std::size_t bytes = 0;
        *found = -1;
        const auto* pointer = reinterpret_cast<const void*>(begin);
        if (emu_memory_find(pointer, 1, &base, &bytes, found) == 0 || *found != device) {
            return begin;
        }
        begin = base + bytes;
    }
    return 0;
}

// torch's group "nccl2" undoes its registrations whenever it ends, and no program can change that.
void tell_of_torch() {
    static std::atomic_flag told;
    if (!told.test_and_set()) {
        std::fprintf(stderr,
                     "rehearsal: torch's group nccl2 undid a registration while an operation that "
                     "used it still ran; pid %d; rule L5 does not count what torch itself does\n",
                     getpid());
    }
}

} // namespace

// Acts at once, also inside a group, as NCCL's does.
TRACEHOOK_NCCL(Result, ncclCommRegister, Comm handle, void* buffer, std::size_t size,
               void** registration) {
    const Entry entry("ncclCommRegister", handle, Access::kBooks);
    if (entry.refused()) {
        return entry.result();
    }
    if (registration == nullptr || buffer == nullptr || size == 0) {
        return failed(kInvalidArgument, "ncclCommRegister: null or empty");
    }
    if (!settings().local_register) {
        *registration = nullptr;
        return kSuccess;
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer);
    Communicator& communicator = *entry.communicator();
    int device = -1;
    const std::uintptr_t foreign =
        first_foreign(begin, begin + size, communicator.device(), &device);
    if (foreign != 0) {
        report(Rule::kL3, communicator.subject(), "[%#zx, %#zx) on device %d, but %#zx is %s",
               begin, begin + size, communicator.device(), foreign,
               device < 0 ? "not mapped" : ("on device " + std::to_string(device)).c_str());
        if (device < 0) {
            return failed(kUnhandledCudaError, "ncclCommRegister: the memory is not mapped");
        }
    }
    *registration = communicator.registrations().add(begin, size);
    return kSuccess;
}

TRACEHOOK_NCCL(Result, ncclCommDeregister, Comm handle, void* registration) {
    const Entry entry("ncclCommDeregister", handle, Access::kBooks);
    if (entry.refused() || registration == nullptr) {
        return entry.result();
    }
    Communicator& communicator = *entry.communicator();
    if (const auto removed = communicator.registrations().remove(registration)) {
        if (removed->in_use && tracehook::nccl::called_by_nccl2()) {
            tell_of_torch();
        } else if (removed->in_use) {
            report(Rule::kL5, communicator.subject(), "[%#zx, %#zx)", removed->extent.begin,
                   removed->extent.end);
        }
        return kSuccess;
    }
    // Rule W9: what ncclCommWindowRegister gave, be it a window or a registration in its place.
    if (window_state(registration) != HandleState::kUnknown ||
        communicator.registrations().holds(registration, Holder::kWindow)) {
        report(Rule::kW9, communicator.subject(), "window %p was given to ncclCommDeregister",
               registration);
        if (communicator.registrations().remove(registration, Holder::kWindow)) {
            return kSuccess;
        }
    } else {
        report(Rule::kL2, communicator.subject(), "registration %p", registration);
    }
    // NCCL returns early here, and the caller finds another current device than before.
    emu_set_current_device(communicator.device());
    return failed(kInvalidUsage, "ncclCommDeregister: could not find the handle");
}

TRACEHOOK_NCCL(Result, ncclMemAlloc, void** pointer, std::size_t size) {
    const Entry entry("ncclMemAlloc");
    if (entry.refused()) {
        return entry.result();
    }
    if (pointer == nullptr) {
        return failed(kInvalidArgument, "ncclMemAlloc: the pointer is null");
    }
    *pointer = size == 0 ? nullptr : emu_memory_allocate(size, emu_current_device());
    return size == 0 || *pointer != nullptr
               ? kSuccess
               : failed(kUnhandledCudaError, "ncclMemAlloc: out of memory");
}

TRACEHOOK_NCCL(Result, ncclMemFree, void* pointer) {
    const Entry entry("ncclMemFree");
    if (entry.refused() || pointer == nullptr) {
        return entry.result();
    }
    return emu_memory_free(pointer) != 0
               ? kSuccess
               : failed(kUnhandledCudaError, "ncclMemFree: not memory of ncclMemAlloc");
}

TRACEHOOK_NCCL(Result, ncclRedOpCreatePreMulSum, int* op, void* scalar, DataType type,
               int residence, Comm handle) {
    const Entry entry("ncclRedOpCreatePreMulSum", handle, Access::kUse);
    if (entry.refused()) {
        return entry.result();
    }
    if (op == nullptr || scalar == nullptr || element_size(type) == 0) {
        return failed(kInvalidArgument, "ncclRedOpCreatePreMulSum: null, or no such data type");
    }
    PreMultiply made{true, type, nullptr, {}};
    if (residence == kScalarDevice) {
        made.device_scalar = scalar;
    } else {
        std::memcpy(made.scalar, scalar, element_size(type));
    }
    *op = entry.communicator()->add_operator(made);
    return kSuccess;
}

TRACEHOOK_NCCL(Result, ncclRedOpDestroy, int op, Comm handle) {
    const Entry entry("ncclRedOpDestroy", handle, Access::kUse);
    if (entry.refused()) {
        return entry.result();
    }
    PreMultiply* const found = entry.communicator()->find_operator(op);
    if (found == nullptr || !found->live) {
        return failed(kInvalidArgument, "ncclRedOpDestroy: no such operator");
    }
    found->live = false;
    return kSuccess;
}
