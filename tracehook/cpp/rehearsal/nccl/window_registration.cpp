#include "window_registration.h"

#include "attendance.h"
#include "calls.h"
#include "launch.h"
#include "rehearsal/cuda/device.h"
#include "settings.h"
#include "window_exchange.h"

#include <algorithm>
#include <thread>
#include <tuple>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::size_t kAlignment = 4096; // NCCL_WIN_REQUIRED_ALIGNMENT
constexpr const char* kCall = "ncclCommWindowRegister";

Result refuse(const Communicator& communicator, Rule rule, Result result,
              const std::string& reason) {
    report(rule, communicator.subject(), "%s: %s", kCall, reason.c_str());
    return failed(result, std::string(kCall) + ": " + reason);
}

// Rules L3 and W7: finds the handles under the window.
Result survey(const Communicator& communicator, const WindowRequest& request, Offer& offer) {
    const Extent extent = request.extent;
    const std::size_t unit = emu_memory_granularity();
    offer = {{0, 0}, {}, true, extent.end - extent.begin, request.flags, 0};
    for (std::uintptr_t next = extent.begin; next < extent.end;) {
        const auto* pointer = reinterpret_cast<const void*>(next);
        std::uintptr_t base = 0;
        std::size_t bytes = 0;
        int device = -1;
        int file = -1;
        std::uint64_t offset = 0;
        if (emu_memory_find(pointer, 1, &base, &bytes, &device) == 0 ||
            device != communicator.device()) {
            return refuse(communicator, Rule::kL3, kUnhandledCudaError,
                          "memory that is not mapped on the device");
        }
        if (emu_memory_has_handle(pointer) == 0 ||
            emu_memory_export(reinterpret_cast<const void*>(base), &file, &offset) == 0) {
            return refuse(communicator, Rule::kW7, kUnhandledCudaError,
                          "memory of cudaMalloc: invalid argument");
        }
        const std::size_t mapped = (bytes + unit - 1) / unit * unit;
        if (offer.pieces.empty()) {
            offer.memory.begin = base;
        } else if (has(Trait::kFirstHandleOnly)) {
            offer.whole = false;
        } else if (!has(Trait::kSeveralHandles)) {
            return refuse(communicator, Rule::kW7, kInvalidArgument, "memory of several handles");
        }
        if (offer.whole) {
            offer.pieces.push_back({getpid(), file, offset, mapped});
            offer.memory.end = base + mapped;
        }
        next = base + bytes;
    }
    if ((extent.begin - offer.memory.begin) % kAlignment != 0) {
        return refuse(communicator, Rule::kW7, kInvalidArgument,
                      "the address must be suitably aligned");
    }
    if (!offer.whole) {
        // Goes well until the window is used.
        report(Rule::kW7, communicator.subject(), "%s: [%#zx, %#zx) lies on several handles", kCall,
               extent.begin, extent.end);
    }
    return kSuccess;
}

Result map(Communicator& communicator, const WindowRequest& request,
           std::shared_ptr<const MappedMemory>& memory) {
    Offer offer{};
    if (const Result result = survey(communicator, request, offer); result != kSuccess) {
        return result;
    }
    if (const auto known = communicator.windows().overlapping(request.extent)) {
        report(Rule::kW8, communicator.subject(), "[%#zx, %#zx) and [%#zx, %#zx)",
               request.extent.begin, request.extent.end, known->begin, known->end);
    }
    if (!has(Trait::kRemapsKnownMemory)) {
        memory = communicator.windows().mapped_at(offer.memory.begin);
    }
    if (has(Trait::kAgreesOnKnownMemory)) {
        const bool known = memory != nullptr && memory->extent.end == offer.memory.end;
        offer.known = known ? memory->position : 0;
        memory = nullptr;
    }
    return memory != nullptr ? kSuccess : exchange(communicator, offer, memory);
}

Result attempt(Communicator& communicator, const WindowRequest& request) {
    WindowTable& windows = communicator.windows();
    if (windows.poisoned()) {
        return refuse(communicator, Rule::kW12, kInternalError, "an earlier registration failed");
    }
    if (!has(Trait::kRegistersInCapture) && emu_capture_under_way() != 0) {
        emu_capture_invalidate();
        return refuse(communicator, Rule::kW6, kUnhandledCudaError,
                      "operation not permitted when stream is capturing");
    }
    const Extent extent = request.extent;
    void* registration =
        communicator.registrations().add(extent.begin, extent.end - extent.begin, Holder::kWindow);
    std::shared_ptr<const MappedMemory> memory;
    if (const Result result = map(communicator, request, memory); result != kSuccess) {
        communicator.registrations().remove(registration, Holder::kWindow);
        return result;
    }
    *request.out = windows.add(memory, extent, request.flags, registration);
    return kSuccess;
}

// Nothing is read or written of what the program passed: that differs between versions, and no
// kernel runs.
Result create_device_communicator(Communicator& communicator) {
    const std::uint64_t number = communicator.next_device_communicator();
    Attendance attendance(communicator, Lane::kDevice, number, Rule::kW18,
                          "ncclDevCommCreate, number " + std::to_string(number));
    communicator.meeting().post(Lane::kDevice, number, &number, sizeof number);
    if (const Result result = attendance.await(Mark::kPosted, "come"); result != kSuccess) {
        return result;
    }
    communicator.meeting().pass(Lane::kDevice, number);
    const Result result = attendance.await(Mark::kPassed, "stay");
    if (result == kSuccess) {
        communicator.add_device_communicator();
    }
    return result;
}

Result register_one(const char* call, const WindowRequest& request, bool guarded) {
    Communicator& communicator = *request.communicator;
    if (guarded && !communicator.enter(call)) {
        return failed(kInternalError, std::string(kCall) + ": aborted");
    }
    const DeviceScope scope(communicator.device());
    const Result result = request.is_device_communicator ? create_device_communicator(communicator)
                                                         : attempt(communicator, request);
    if (result != kSuccess) {
        communicator.windows().poison();
    }
    if (guarded) {
        communicator.leave();
    }
    return result;
}

using RequestIterator = std::vector<WindowRequest>::iterator;

Result register_in_turn(const char* call, RequestIterator begin, RequestIterator end,
                        bool guarded) {
    Result result = kSuccess;
    for (RequestIterator request = begin; request != end; ++request) {
        if (result == kSuccess) {
            result = register_one(call, *request, guarded);
        } else {
            request->communicator->windows().poison();
        }
    }
    return result;
}

// Several ranks of one communicator in one group wait for each other.
Result register_together(const char* call, RequestIterator begin, RequestIterator end,
                         bool guarded) {
    Result total = kSuccess;
    std::string text;
    std::mutex mutex; // protects both
    std::vector<std::jthread> threads;
    for (RequestIterator first = begin; first != end;) {
        const RequestIterator last = std::find_if(first, end, [&](const WindowRequest& request) {
            return request.communicator != first->communicator;
        });
        if (first == begin && last == end) {
            return register_in_turn(call, begin, end, guarded);
        }
        threads.emplace_back([&, first, last] {
            const Result result = register_in_turn(call, first, last, guarded);
            const std::lock_guard lock(mutex);
            if (result != kSuccess && total == kSuccess) {
                total = result;
                text = last_error();
            }
        });
        first = last;
    }
    threads.clear(); // joins them
    return total == kSuccess ? kSuccess : failed(total, text);
}

} // namespace

Result register_windows(const char* call, std::vector<WindowRequest> requests, bool guarded) {
    // Of one communicator, windows first, as NCCL does.
    const auto name = [](const WindowRequest& request) {
        return std::tuple(request.communicator->key(), request.communicator->rank(),
                          request.is_device_communicator);
    };
    std::ranges::stable_sort(requests, {}, name);
    for (RequestIterator begin = requests.begin(); begin != requests.end();) {
        const RequestIterator end =
            std::find_if(begin, requests.end(), [&](const WindowRequest& request) {
                return request.communicator->key() != begin->communicator->key();
            });
        if (const Result result = register_together(call, begin, end, guarded);
            result != kSuccess) {
            return result;
        }
        begin = end;
    }
    return kSuccess;
}

Result register_unsupported(Communicator& communicator, Extent extent, Window* out) {
    *out = has(Trait::kLocalInDisguise)
               ? communicator.registrations().add(extent.begin, extent.end - extent.begin,
                                                  Holder::kWindow)
               : nullptr;
    return kSuccess;
}

Result deregister_window(Communicator& communicator, Window window) {
    RegistrationCache& registrations = communicator.registrations();
    if (const auto removed = communicator.windows().remove(window)) {
        if (removed->in_use) {
            report(Rule::kW13, communicator.subject(), "window [%#zx, %#zx)", removed->extent.begin,
                   removed->extent.end);
        }
        if (const int live = communicator.device_communicators(); live != 0) {
            report(Rule::kW19, communicator.subject(), "window [%#zx, %#zx), %d live",
                   removed->extent.begin, removed->extent.end, live);
        }
        registrations.remove(removed->registration, Holder::kWindow);
        return kSuccess;
    }
    if (has(Trait::kLocalInDisguise) && registrations.remove(window, Holder::kWindow)) {
        return kSuccess;
    }
    if (registrations.holds(window, Holder::kClient)) {
        report(Rule::kW9, communicator.subject(),
               "registration %p was given to ncclCommWindowDeregister", window);
        if (has(Trait::kLocalInDisguise)) {
            registrations.remove(window);
            return kSuccess;
        }
    } else if (window_state(window) == HandleState::kEnded) {
        report(Rule::kW14, communicator.subject(), "window %p", window);
    } else {
        report(Rule::kL2, communicator.subject(), "window %p", window);
    }
    return failed(kInternalError, "ncclCommWindowDeregister: the object does not exist");
}

} // namespace tracehook::rehearsal::nccl
