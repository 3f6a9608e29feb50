#include "nccl/interpose.h"

#include "nccl/coll_config.h"
#include "nccl/importers.h"
#include "nccl/wrappers.h"

#include <atomic>
#include <mutex>
#include <tuple>
#include <type_traits>

namespace tracehook::nccl {

namespace {

// Set before the first slot is rewritten; a forked child that starts anew sets its own.
std::atomic<core::Registrar*> target{nullptr};

} // namespace

core::Registrar& registrar() noexcept {
    return *target.load(std::memory_order_acquire);
}

namespace {

template <auto Real, std::size_t Position, typename... Args> int guarded(Args... args) {
    const Comm comm = std::get<Position>(std::forward_as_tuple(args...));
    return inside<Real, Args...>(registrar().find(comm), args...);
}

// The number of an operation in the table.
enum class Placed : std::uint32_t {
#define GUARDED(...)
#define LIFECYCLE(...)
#define PLACED(name, ...) name,
#include "nccl/calls.def"
#undef GUARDED
#undef LIFECYCLE
#undef PLACED
};

template <auto Real, std::size_t Position, Placed Number, typename... Args>
int placed(Args... args) {
    const auto arguments = std::forward_as_tuple(args...);
    const Comm comm = std::get<Position>(arguments);
    const core::CommunicatorPtr& communicator = registrar().find(comm);
    if (!communicator) {
        return (api().*Real)(args...);
    }
    // The last argument, or the one before a configuration.
    using Last = std::tuple_element_t<sizeof...(Args) - 1, std::tuple<Args...>>;
    constexpr bool kHasConfig = std::is_same_v<Last, const CollConfig*>;
    constexpr std::size_t kAfter = kHasConfig ? 2 : 1;
    std::uint32_t config = 0;
    if constexpr (kHasConfig) {
        config = number_of(std::get<sizeof...(Args) - 1>(arguments));
    }
    core::Windows& windows = communicator->windows();
    if (config == 0 && !windows.engaged()) {
        const bool entered = communicator->gate().enter(*communicator);
        if (windows.count_plain_call()) {
            return called<Real, false, Args...>(communicator, entered, args...);
        }
        if (entered) { // a fence came meanwhile
            communicator->gate().leave();
        }
    }
    const Stream stream = std::get<sizeof...(Args) - kAfter>(arguments);
    // `communicator` is this thread's last find(), until a comparison finds others.
    core::CommunicatorPtr kept;
    const Call call{static_cast<std::uint32_t>(Number),
                    std::get<0>(arguments),
                    std::get<1>(arguments),
                    std::get<2>(arguments),
                    std::get<3>(arguments),
                    stream,
                    ThreadGroup::mine().flights(*communicator) != 0,
                    config};
    if (const int refused = check_placement(communicator, call, kept); refused != kSuccess) {
        return refused;
    }
    const core::CommunicatorPtr& found = kept ? kept : communicator;
    return called<Real, true, Args...>(found, found->gate().enter(*found), args...);
}

// torch asks for it when a call did not succeed: what we refused, NCCL knows nothing of.
const char* last_error(Comm comm) {
    const char* const ours = take_refusal();
    return ours != nullptr ? ours : api().ncclGetLastError(comm);
}

} // namespace

// --- groups ---

int on_ncclGroupStart() {
    const int result = api().ncclGroupStart();
    if (result == kSuccess) {
        ThreadGroup::mine().started();
    }
    return result;
}

int on_ncclGroupEnd() {
    return ThreadGroup::mine().ended(registrar(), [] { return api().ncclGroupEnd(); });
}

int on_ncclGroupSimulateEnd(Simulation* simulation) {
    return ThreadGroup::mine().simulated(
        [simulation] { return api().ncclGroupSimulateEnd(simulation); });
}

std::vector<std::string> install_interposer(core::Registrar& owner) {
    static std::mutex once; // one installation at a time; nothing is locked inside it
    const std::lock_guard guard(once);
    const Api& real = api();
    target.store(&owner, std::memory_order_release);
    std::vector<Replacement> replacements;
#define GUARDED(name, position, ...)                                                               \
    if (real.name != nullptr) {                                                                    \
        replacements.push_back(                                                                    \
            {#name, reinterpret_cast<void*>(&guarded<&Api::name, position, __VA_ARGS__>)});        \
    }
#define PLACED(name, position, operation, send, receive, by_send, by_receive, ...)                 \
    if (real.name != nullptr) {                                                                    \
        replacements.push_back(                                                                    \
            {#name,                                                                                \
             reinterpret_cast<void*>(&placed<&Api::name, position, Placed::name, __VA_ARGS__>)});  \
    }
#define LIFECYCLE(name, ...)                                                                       \
    if (real.name != nullptr) {                                                                    \
        replacements.push_back({#name, reinterpret_cast<void*>(&on_##name)});                      \
    }
#include "nccl/calls.def"
#undef GUARDED
#undef PLACED
#undef LIFECYCLE
    if (real.ncclGetLastError != nullptr) {
        replacements.push_back({"ncclGetLastError", reinterpret_cast<void*>(&last_error)});
    }
    return intercept(replacements);
}

} // namespace tracehook::nccl
