#include "nccl/interpose.h"

#include "nccl/coll_config.h"
#include "nccl/graphs.h"
#include "nccl/importers.h"
#include "nccl/paying.h"
#include "nccl/wrappers.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace tracehook::nccl {

namespace {

// Set before the first slot is rewritten; a forked child that starts anew sets its own.
std::atomic<registrar::Registrar*> target{nullptr};

} // namespace

registrar::Registrar& registrar() noexcept {
    return *target.load(std::memory_order_acquire);
}

namespace {

template <auto Real, std::size_t Position, typename... Args> int guarded(Args... args) {
    const Comm comm = std::get<Position>(std::forward_as_tuple(args...));
    return inside<Real, Args...>(registrar().find(comm), args...);
}

// What is said of a call in `what` of its record.
constexpr std::uint32_t described(std::uint32_t operation, int type, int reduction) noexcept {
    return operation | (static_cast<std::uint32_t>(type) & 0xFF) << 8 |
           static_cast<std::uint32_t>(reduction) << 16;
}

std::uint64_t captured_kind(Stream stream) noexcept {
    return capturing(stream) ? events::Tally::kCaptured : 0;
}

// `kind`: where its buffers lie, and whether it is captured.
Collective collective(std::uint32_t operation, int type, int reduction, std::size_t count,
                      std::int32_t root, std::uint64_t kind) noexcept {
    // Those that programs make are one: for each NCCL has another number on each rank.
    const std::uint32_t what = described(operation, type, std::min<int>(reduction, kNumOps));
    return {what, count, root, kind | what, bytes_of(count, type)};
}

// The number of another counted call; those of PLACED are below.
constexpr std::uint32_t kFirstCounted = 128;
enum class Counted : std::uint32_t {
    kBefore = kFirstCounted - 1,
#define GUARDED(...)
#define PLACED(...)
#define LIFECYCLE(...)
#define COUNTED(name, ...) name,
#define TRANSFER(name, ...) name,
#include "nccl/calls.def"
#undef GUARDED
#undef PLACED
#undef LIFECYCLE
};

template <auto Real, std::size_t Position, Counted Number, std::size_t Count, std::size_t Type,
          std::size_t Root, typename... Args>
int counted_collective(Args... args) {
    const auto arguments = std::forward_as_tuple(args...);
    int reduction = 0;
    if constexpr (Root == Type + 2) {
        reduction = std::get<Type + 1>(arguments);
    }
    const Collective call =
        collective(static_cast<std::uint32_t>(Number), std::get<Type>(arguments), reduction,
                   std::get<Count>(arguments), std::get<Root>(arguments),
                   captured_kind(std::get<stream_position<Args...>()>(arguments)));
    const registrar::CommunicatorPtr& communicator =
        registrar().find(std::get<Position>(arguments));
    if (communicator && communicator->refuses()) {
        return ThreadGroup::mine().refused(check_refusal(*communicator));
    }
    const bool entered = communicator && communicator->gate().enter(*communicator);
    if (entered) {
        const std::size_t bytes = bytes_of(std::get<Count>(arguments), std::get<Type>(arguments));
        const Stream stream = std::get<stream_position<Args...>()>(arguments);
        place_alone(registrar(), *communicator, std::get<0>(arguments), bytes, false, stream);
        if constexpr (Count == 2) { // the second is an output
            place_alone(registrar(), *communicator, std::get<1>(arguments), bytes, false, stream);
        }
    }
    return called<Real, false, Collective, Args...>(communicator, entered, call, args...);
}

template <auto Real, std::size_t Position, Counted Number, std::size_t Count, std::size_t Type,
          std::size_t Peer, typename... Args>
int transferred(Args... args) {
    const auto arguments = std::forward_as_tuple(args...);
    const Transfer call{described(static_cast<std::uint32_t>(Number), std::get<Type>(arguments), 0),
                        std::get<Count>(arguments), std::get<Peer>(arguments),
                        Number == Counted::ncclSend};
    const registrar::CommunicatorPtr& communicator =
        registrar().find(std::get<Position>(arguments));
    if (communicator && communicator->refuses()) {
        return ThreadGroup::mine().refused(check_refusal(*communicator));
    }
    const std::size_t bytes = bytes_of(std::get<Count>(arguments), std::get<Type>(arguments));
    const Stream stream = std::get<stream_position<Args...>()>(arguments);
    // Of two ranks both make it. Of more, nobody knows whether the others come to one.
    if (communicator && communicator->identity().size == 2 &&
        is_to_ask(registrar(), *communicator, PayingCall::kTransfer, bytes, stream)) {
        ask_ranks(registrar::CommunicatorPtr(communicator)); // which may find others on this thread
        return transferred<Real, Position, Number, Count, Type, Peer, Args...>(args...);
    }
    const bool entered = communicator && communicator->gate().enter(*communicator);
    if (entered) {
        const bool gains = pays(PayingCall::kTransfer, bytes, stream) &&
                           registrar().registers_calls(*communicator);
        note_captured(registrar(), *communicator, {std::get<0>(arguments)}, stream);
        place_alone(registrar(), *communicator, std::get<0>(arguments), bytes, gains, stream);
    }
    return called<Real, false, Transfer, Args...>(communicator, entered, call, args...);
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

constexpr std::string_view operation_name(Placed number) noexcept {
    constexpr std::string_view kNames[] = {
#define GUARDED(...)
#define LIFECYCLE(...)
#define PLACED(name, position, operation, ...) operation,
#include "nccl/calls.def"
#undef GUARDED
#undef LIFECYCLE
#undef PLACED
    };
    return kNames[static_cast<std::size_t>(number)];
}

constexpr bool has_root(std::string_view operation) noexcept {
    return !operation.starts_with("all_") && !operation.starts_with("reduce_scatter");
}

constexpr PayingCall paying_call(std::string_view operation) noexcept {
    return operation == "all_gather"   ? PayingCall::kAllGather
           : operation == "all_to_all" ? PayingCall::kAllToAll
                                       : PayingCall::kNone;
}

constexpr bool is_exchange(std::string_view operation) noexcept {
    return operation.starts_with("all_to_all") || operation.starts_with("gather") ||
           operation.starts_with("scatter");
}

// Inside the gate. NCCL makes messages of these calls, unless its copy engine takes them: there a
// buffer in a window must not meet memory that is not registered. `kind` tells of all ranks alike
// where both buffers of an all_to_all lie; nobody knows the root's.
template <Placed Number, typename Arguments>
void place_exchanged(registrar::Communicator& communicator, const Arguments& arguments,
                     std::uint64_t kind, Stream stream) noexcept {
    constexpr bool kRooted = has_root(operation_name(Number));
    const bool sends = (kind & events::Tally::kSends) != 0;
    const bool receives = (kind & events::Tally::kReceives) != 0;
    if (sends == receives && !(kRooted && sends)) {
        return;
    }
    if (copies_exchanges() && (kRooted || (receives && version() >= kCopiesToOneWindow))) {
        return;
    }
    const std::size_t one = bytes_of(std::get<2>(arguments), std::get<3>(arguments));
    const auto ranks = static_cast<std::size_t>(std::max(communicator.identity().size, 1));
    constexpr bool kScatters = operation_name(Number).starts_with("scatter");
    constexpr bool kGathers = operation_name(Number).starts_with("gather");
    place_alone(registrar(), communicator, std::get<0>(arguments), kGathers ? one : one * ranks,
                false, stream);
    place_alone(registrar(), communicator, std::get<1>(arguments), kScatters ? one : one * ranks,
                false, stream);
}

// Inside the gate. `kind`: where the buffers lie; a buffer in a window stays where it is, because
// NCCL finds windows by addresses, too.
template <Placed Number, typename Arguments>
void move_to_registered(registrar::Communicator& communicator, const Arguments& arguments,
                        std::uint64_t kind, Stream stream) noexcept {
    constexpr std::string_view kName = operation_name(Number);
    constexpr PayingCall kCall = paying_call(kName);
    if constexpr (kName.starts_with("all_gather") || is_exchange(kName)) {
        note_captured(registrar(), communicator, {std::get<0>(arguments), std::get<1>(arguments)},
                      stream);
    }
    if constexpr (kCall != PayingCall::kNone) {
        const std::size_t bytes = bytes_of(std::get<2>(arguments), std::get<3>(arguments),
                                           std::max(communicator.identity().size, 0));
        if ((kind & (events::Tally::kSends | events::Tally::kReceives)) != 0 ||
            !pays(kCall, bytes, stream)) {
            return;
        }
        const auto ranks = static_cast<std::size_t>(communicator.identity().size);
        constexpr bool kGathers = kCall == PayingCall::kAllGather;
        constexpr auto kWhat = kGathers ? registrar::RegisteredFor::kCollectives
                                        : registrar::RegisteredFor::kTransfers;
        to_registered(registrar(), communicator, kWhat, std::get<0>(arguments),
                      kGathers ? bytes / ranks : bytes, !kGathers, std::get<1>(arguments), bytes);
    }
}

struct Kind {
    int reduction = -1; // -1: the call has none
    int root = -1;
};

// Between the type and the communicator stand a reduction, a root, both, or neither.
template <Placed Number, std::size_t Position, typename Arguments>
Kind kind_of(const Arguments& arguments) noexcept {
    constexpr std::size_t kFirst = 4;
    constexpr bool kHasRoot = has_root(operation_name(Number));
    Kind found;
    if constexpr (kHasRoot) {
        found.root = std::get<Position - 1>(arguments);
    }
    if constexpr (Position - (kHasRoot ? 1 : 0) > kFirst) {
        found.reduction = std::get<kFirst>(arguments);
    }
    return found;
}

template <Placed Number, std::size_t Position, typename Arguments>
Collective as_collective(const Arguments& arguments, std::uint64_t kind) noexcept {
    const Kind found = kind_of<Number, Position>(arguments);
    return collective(static_cast<std::uint32_t>(Number), std::get<3>(arguments),
                      std::max(found.reduction, 0), std::get<2>(arguments), found.root, kind);
}

template <auto Real, std::size_t Position, Placed Number, typename... Args>
int placed(Args... args) {
    const auto arguments = std::forward_as_tuple(args...);
    const Comm comm = std::get<Position>(arguments);
    const registrar::CommunicatorPtr& communicator = registrar().find(comm);
    if (!communicator) {
        return (api().*Real)(args...);
    }
    if (communicator->rests()) {
        return ThreadGroup::mine().refused(check_refusal(*communicator));
    }
    constexpr std::size_t kStream = stream_position<Args...>();
    const Stream stream = std::get<kStream>(arguments);
    constexpr PayingCall kPaying = paying_call(operation_name(Number));
    if constexpr (kPaying != PayingCall::kNone) {
        const std::size_t bytes = bytes_of(std::get<2>(arguments), std::get<3>(arguments),
                                           std::max(communicator->identity().size, 0));
        if (is_to_ask(registrar(), *communicator, kPaying, bytes, stream)) {
            ask_ranks(
                registrar::CommunicatorPtr(communicator)); // which may find others on this thread
            return placed<Real, Position, Number, Args...>(args...);
        }
    }
    std::uint32_t config = 0;
    if constexpr (kStream + 1 < sizeof...(Args)) {
        config = number_of(std::get<kStream + 1>(arguments));
    }
    windows::Windows& windows = windows::table_of(*communicator);
    if (config == 0 && !windows.engaged()) {
        const std::uint64_t kind = captured_kind(stream);
        const bool entered = communicator->gate().enter(*communicator);
        if (windows.count_plain_call()) {
            if (entered) {
                move_to_registered<Number>(*communicator, arguments, kind, stream);
            }
            return called<Real, false, Collective, Args...>(
                communicator, entered, as_collective<Number, Position>(arguments, kind), args...);
        }
        if (entered) { // a fence came meanwhile
            communicator->gate().leave();
        }
    }
    // `communicator` is this thread's last find(), until a comparison finds others.
    Checked checked;
    const Kind kind = kind_of<Number, Position>(arguments);
    const Call call{static_cast<std::uint32_t>(Number),
                    std::get<0>(arguments),
                    std::get<1>(arguments),
                    std::get<2>(arguments),
                    std::get<3>(arguments),
                    stream,
                    ThreadGroup::mine().flights(*communicator) != 0,
                    config,
                    kind.reduction,
                    kind.root};
    if (const int refused = check_placement(communicator, call, checked); refused != kSuccess) {
        return ThreadGroup::mine().refused(refused);
    }
    const registrar::CommunicatorPtr& found = checked.kept ? checked.kept : communicator;
    const bool entered = found->gate().enter(*found);
    if (entered) {
        if constexpr (is_exchange(operation_name(Number))) {
            place_exchanged<Number>(*found, arguments, checked.kind, stream);
        }
        move_to_registered<Number>(*found, arguments, checked.kind, stream);
    }
    return called<Real, true, Collective, Args...>(
        found, entered, as_collective<Number, Position>(arguments, checked.kind), args...);
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
    return ThreadGroup::mine().ended(registrar(), true, [] { return api().ncclGroupEnd(); });
}

int on_ncclGroupSimulateEnd(Simulation* simulation) {
    return ThreadGroup::mine().ended(
        registrar(), false, [simulation] { return api().ncclGroupSimulateEnd(simulation); });
}

std::vector<std::string> install_interposer(registrar::Registrar& owner,
                                            const std::vector<elf::Beside>& beside) {
    static std::mutex once; // one installation at a time; nothing is locked inside it
    const std::lock_guard guard(once);
    const Api& real = api();
    target.store(&owner, std::memory_order_release);
    std::vector<elf::Replacement> replacements;
    const auto replace = [&](auto known, const char* name, auto* ours) {
        if (known != nullptr) {
            replacements.push_back({name, reinterpret_cast<void*>(ours)});
        }
    };
#define GUARDED(name, position, ...)                                                               \
    replace(real.name, #name, &guarded<&Api::name, position, __VA_ARGS__>);
#define PLACED(name, position, operation, send, receive, by_send, by_receive, ...)                 \
    replace(real.name, #name, &placed<&Api::name, position, Placed::name, __VA_ARGS__>);
#define LIFECYCLE(name, ...) replace(real.name, #name, &on_##name);
#define COUNTED(name, position, operation, count, type, root, ...)                                 \
    replace(                                                                                       \
        real.name, #name,                                                                          \
        &counted_collective<&Api::name, position, Counted::name, count, type, root, __VA_ARGS__>);
#define TRANSFER(name, position, operation, count, type, peer, ...)                                \
    replace(real.name, #name,                                                                      \
            &transferred<&Api::name, position, Counted::name, count, type, peer, __VA_ARGS__>);
#include "nccl/calls.def"
#undef GUARDED
#undef PLACED
#undef LIFECYCLE
    replace(real.ncclGetLastError, "ncclGetLastError", &last_error);
    return intercept(replacements, beside);
}

} // namespace tracehook::nccl
