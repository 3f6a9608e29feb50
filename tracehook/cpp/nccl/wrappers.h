// What stands in front of NCCL's functions, for the files that define it: interpose.cpp (operations
// and groups), lifecycle.cpp (communicators), suspension.cpp, registrations_of_others.cpp. The
// contract of all of them is in interpose.h.
#pragma once

#include "nccl/abi.h"
#include "nccl/api.h"
#include "nccl/coll_config.h"
#include "nccl/group.h"
#include "nccl/marks.h"
#include "nccl/placement.h"
#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <tuple>
#include <type_traits>

namespace tracehook::nccl {

// Whom the wrappers tell. Not before install_interposer().
registrar::Registrar& registrar() noexcept;

#define GUARDED(...)
#define PLACED(...)
#define LIFECYCLE(name, ...) int on_##name(__VA_ARGS__);
#include "nccl/calls.def"
#undef GUARDED
#undef PLACED
#undef LIFECYCLE

// What a call is counted as (events/calls.h). taken(), taken_in(): NCCL has it, or will have it at
// the end of the thread's open group.
struct Uncounted {
    static void returned(events::CallSlot& /*calls*/) noexcept {}
    static void taken(events::CallSlot& /*calls*/) noexcept {}
    static void taken_in(ThreadGroup& /*group*/, const registrar::Communicator& /*of*/) noexcept {}
};
struct Collective {
    std::uint32_t what;
    std::uint64_t count;
    std::int32_t root;
    std::uint64_t kind; // see events/tally.h
    std::uint64_t nbytes;
    events::CallRecord& begins(events::CallSlot& calls) const noexcept {
        return calls.collective_begins(what, count, root,
                                       events::placed(ThreadGroup::mine().number()));
    }
    // Asked already, for `kind`.
    bool is_captured(Stream) const noexcept { return (kind & events::Tally::kCaptured) != 0; }
    static void returned(events::CallSlot& calls) noexcept { calls.collective_returned(); }
    void taken(events::CallSlot& calls) const noexcept { calls.tally(kind, nbytes); }
    void taken_in(ThreadGroup& group, const registrar::Communicator& communicator) const {
        group.made(communicator, kind, nbytes);
    }
};
struct Transfer {
    std::uint32_t what;
    std::uint64_t count;
    std::int32_t peer;
    bool sends;
    events::CallRecord& begins(events::CallSlot& calls) const noexcept {
        return calls.transfer_begins(what, count, peer, sends,
                                     events::placed(ThreadGroup::mine().number()));
    }
    static bool is_captured(Stream stream) noexcept { return capturing(stream); }
    static void returned(events::CallSlot& calls) noexcept { calls.transfer_returned(); }
    static void taken(events::CallSlot& /*calls*/) noexcept {}
    static void taken_in(ThreadGroup& group, const registrar::Communicator& communicator) {
        group.made_other(communicator);
    }
};

// The last argument, or the one before a configuration.
template <typename... Args> constexpr std::size_t stream_position() noexcept {
    using Last = std::tuple_element_t<sizeof...(Args) - 1, std::tuple<Args...>>;
    return sizeof...(Args) - (std::is_same_v<Last, const CollConfig*> ? 2 : 1);
}

// `communicator`: the thread keeps it meanwhile. `entered`: whether we are inside its gate.
// `lands`: the call was counted by its windows, and is in flight.
template <auto Real, bool lands, typename Counted, typename... Args>
int called(const registrar::CommunicatorPtr& communicator, bool entered, const Counted& counted,
           Args... args) {
    const auto real = api().*Real;
    if (!entered) {
        return real(args...);
    }
    events::CallSlot* const calls = communicator->calls();
    if constexpr (requires { counted.begins(*calls); }) {
        if (calls != nullptr) {
            events::CallRecord& record = counted.begins(*calls);
            const Stream stream =
                std::get<stream_position<Args...>()>(std::forward_as_tuple(args...));
            if (marks_are_looked_at() && !counted.is_captured(stream)) {
                mark(record, stream);
            }
        }
    }
    const int result = real(args...);
    if (calls != nullptr) {
        counted.returned(*calls);
    }
    const bool took = result == kSuccess || result == kInProgress;
    if (ThreadGroup& group = ThreadGroup::mine(); group.open()) {
        group.touched(communicator);
        if (took) {
            counted.taken_in(group, *communicator);
        }
    } else if (took) {
        communicator->look_at_new_aliases();
        if (calls != nullptr) {
            counted.taken(*calls);
        }
    }
    if constexpr (lands) {
        windows::table_of(*communicator).land();
    }
    communicator->gate().leave();
    return result;
}

template <auto Real, typename Counted, typename... Args>
int counted_inside(const registrar::CommunicatorPtr& communicator, const Counted& counted,
                   Args... args) {
    if (communicator && communicator->refuses()) {
        return ThreadGroup::mine().refused(check_refusal(*communicator));
    }
    return called<Real, false>(
        communicator, communicator && communicator->gate().enter(*communicator), counted, args...);
}

template <auto Real, typename... Args>
int inside(const registrar::CommunicatorPtr& communicator, Args... args) {
    return counted_inside<Real>(communicator, Uncounted{}, args...);
}

} // namespace tracehook::nccl
