#include "nccl/interpose.h"

#include "nccl/api.h"
#include "nccl/caller.h"
#include "nccl/group.h"
#include "nccl/importers.h"
#include "nccl/key.h"
#include "nccl/placement.h"
#include "nccl/window_guard.h"

#include <atomic>
#include <mutex>
#include <tuple>
#include <type_traits>

namespace tracehook::nccl {

namespace {

// Set before the first slot is rewritten; a forked child that starts anew sets its own.
std::atomic<core::Registrar*> target{nullptr};

core::Registrar& registrar() noexcept {
    return *target.load(std::memory_order_acquire);
}

std::atomic<LocalMode> local_mode{LocalMode::kAuto};

// --- calls inside one communicator ---

// `communicator` is this thread's last find(), and `entered`: whether we are inside its gate.
template <auto Real, typename... Args>
int called(const core::CommunicatorPtr& communicator, bool entered, Args... args) {
    const auto real = api().*Real;
    if (!entered) {
        return real(args...);
    }
    const int result = real(args...);
    communicator->gate().leave();
    if (ThreadGroup& group = ThreadGroup::mine(); group.open()) {
        group.touched(communicator);
    }
    return result;
}

template <auto Real, typename... Args>
int inside(const core::CommunicatorPtr& communicator, Args... args) {
    if (communicator && communicator->refusal() != nullptr) {
        return check_refusal(*communicator);
    }
    return called<Real>(communicator, communicator && communicator->gate().enter(*communicator),
                        args...);
}

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
    if (!communicator || communicator->windows().count_plain_call()) {
        return inside<Real, Args...>(communicator, args...);
    }
    // The last argument, or the one before a configuration.
    using Last = std::tuple_element_t<sizeof...(Args) - 1, std::tuple<Args...>>;
    constexpr std::size_t kAfter = std::is_same_v<Last, const CollConfig*> ? 2 : 1;
    const Stream stream = std::get<sizeof...(Args) - kAfter>(arguments);
    const int refused = check_placement(communicator, static_cast<std::uint32_t>(Number),
                                        std::get<0>(arguments), std::get<1>(arguments),
                                        std::get<2>(arguments), std::get<3>(arguments), stream);
    // Looked for anew: comparing may have looked for other communicators meanwhile.
    if (refused != kSuccess) {
        return refused;
    }
    const core::CommunicatorPtr& found = registrar().find(comm);
    return called<Real, Args...>(found, found && found->gate().enter(*found), args...);
}

// torch asks for it when a call did not succeed: what we refused, NCCL knows nothing of.
const char* last_error(Comm comm) {
    const char* const ours = take_refusal();
    return ours != nullptr ? ours : api().ncclGetLastError(comm);
}

// --- registrations of others ---

// torch makes them in its tracker, with its own lock and the allocator's held, and before an abort:
// to wait there without end for a thread that hangs in NCCL would keep the abort away.
template <auto Real, typename... Args>
int by_others(const core::CommunicatorPtr& communicator, Args... args) {
    return called<Real>(communicator,
                        communicator && communicator->gate().enter_soon(*communicator), args...);
}

// Past the gate altogether: we register nothing with such a communicator that could be met there.
bool is_observed(const core::CommunicatorPtr& communicator) noexcept {
    return communicator && communicator->identity().local == core::Local::kObserved;
}

int on_ncclCommRegister(Comm comm, void* buffer, std::size_t size, void** handle) {
    const core::CommunicatorPtr& found = registrar().find(comm);
    if (!is_observed(found)) {
        return by_others<&Api::ncclCommRegister>(found, comm, buffer, size, handle);
    }
    const core::CommunicatorPtr communicator = found; // the ledger is asked meanwhile
    const std::uint64_t begin_ns = core::monotonic_ns();
    const int result = api().ncclCommRegister(comm, buffer, size, handle);
    const std::uint64_t now_ns = core::monotonic_ns();
    void* const given = result == kSuccess && handle != nullptr ? *handle : nullptr;
    registrar().observed(communicator, {reinterpret_cast<std::uintptr_t>(buffer), size, given,
                                        result, now_ns, now_ns - begin_ns});
    return result;
}

int on_ncclCommDeregister(Comm comm, void* handle) {
    const core::CommunicatorPtr& found = registrar().find(comm);
    if (!is_observed(found)) {
        return by_others<&Api::ncclCommDeregister>(found, comm, handle);
    }
    const core::CommunicatorPtr communicator = found;
    const std::uint64_t begin_ns = core::monotonic_ns();
    const int result = api().ncclCommDeregister(comm, handle);
    const std::uint64_t now_ns = core::monotonic_ns();
    registrar().unobserved(communicator, {0, 0, handle, result, now_ns, now_ns - begin_ns});
    return result;
}

int on_ncclCommWindowRegister(Comm comm, void* buffer, std::size_t size, Window* window,
                              int flags) {
    const core::CommunicatorPtr communicator = registrar().find(comm);
    const auto make = [&] {
        return inside<&Api::ncclCommWindowRegister>(communicator, comm, buffer, size, window,
                                                    flags);
    };
    if (!communicator || communicator->refusal() != nullptr || window == nullptr) {
        return make();
    }
    return register_guarded({communicator, buffer, size, flags, window, ThreadGroup::mine().open()},
                            make);
}

int on_ncclCommWindowDeregister(Comm comm, Window window) {
    const core::CommunicatorPtr communicator = registrar().find(comm);
    const std::uint64_t begin_ns = core::monotonic_ns();
    const core::Window taken =
        communicator ? communicator->take_window_of_others(window) : core::Window{};
    const int result = by_others<&Api::ncclCommWindowDeregister>(communicator, comm, window);
    const std::uint64_t now_ns = core::monotonic_ns();
    if (communicator) {
        communicator->log_window_of_others_ended(
            {taken.address, taken.size, window, result, now_ns, now_ns - begin_ns});
    }
    return result;
}

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

// --- communicators that begin ---

} // namespace

core::Local local_of(bool registers_itself) noexcept {
    switch (local_mode.load(std::memory_order_relaxed)) {
    case LocalMode::kOurs:
        return core::Local::kOurs;
    case LocalMode::kObserve:
        return core::Local::kObserved;
    case LocalMode::kOff:
        return core::Local::kOff;
    case LocalMode::kAuto:
        break;
    }
    return registers_itself ? core::Local::kObserved : core::Local::kOurs;
}

namespace {

// After the call that makes `birth` returned `result`.
int after_birth(int result, Birth birth) {
    if (registrar().abandoned() || (result != kSuccess && result != kInProgress)) {
        return result;
    }
    look_for_importers(); // whoever made it may have been loaded by another library
    birth.local = local_of(called_by_nccl2());
    if (result == kInProgress) {
        birth.blocking = false; // whatever its configuration said: NCCL_COMM_BLOCKING overrides it
    }
    ThreadGroup& group = ThreadGroup::mine();
    if (group.open()) {
        group.expect(std::move(birth));
    } else if (!deliver(registrar(), birth) && result == kInProgress) {
        group.expect(std::move(birth));
    }
    return result;
}

int on_ncclCommInitRank(Comm* out, int size, UniqueId id, int rank) {
    Birth birth{out,  key_of_unique_ids({&id, 1}), current_device(), rank, size, true, nullptr,
                false};
    birth.shares = config_sharing(nullptr);
    return after_birth(api().ncclCommInitRank(out, size, id, rank), std::move(birth));
}

int on_ncclCommInitRankConfig(Comm* out, int size, UniqueId id, int rank, Config* config) {
    Birth birth{out,  key_of_unique_ids({&id, 1}), current_device(), rank,
                size, config_blocking(config),     nullptr,          false};
    birth.shares = config_sharing(config);
    return after_birth(api().ncclCommInitRankConfig(out, size, id, rank, config), std::move(birth));
}

int on_ncclCommInitRankScalable(Comm* out, int size, int rank, int id_count, UniqueId* ids,
                                Config* config) {
    const std::span<const UniqueId> all(ids, static_cast<std::size_t>(id_count));
    Birth birth{out,  key_of_unique_ids(all),  current_device(), rank,
                size, config_blocking(config), nullptr,          false};
    birth.shares = config_sharing(config);
    return after_birth(api().ncclCommInitRankScalable(out, size, rank, id_count, ids, config),
                       std::move(birth));
}

int on_ncclCommInitAll(Comm* out, int count, const int* devices) {
    // One process holds all ranks, so the key needs to be unique in this process only.
    static std::atomic<std::uint64_t> calls{0};
    const std::uint64_t key = key_of_child(0, "all", count, calls.fetch_add(1));
    const int result = api().ncclCommInitAll(out, count, devices);
    for (int rank = 0; rank < count; ++rank) {
        Birth birth{out + rank, key,  devices != nullptr ? devices[rank] : rank, rank, count, true,
                    nullptr,    false};
        birth.shares = config_sharing(nullptr);
        after_birth(result, std::move(birth));
    }
    return result;
}

// Children are counted per parent, by every rank of it: split and shrink are collective calls.
std::uint64_t next_child(const core::CommunicatorPtr& parent) {
    return parent ? parent->next_child() : 0;
}

int on_ncclCommSplit(Comm comm, int colour, int key, Comm* out, Config* config) {
    const core::CommunicatorPtr parent = registrar().find(comm);
    Birth birth;
    birth.out = out;
    birth.device = parent ? parent->identity().device : current_device();
    birth.key =
        key_of_child(parent ? parent->identity().key : 0, "split", colour, next_child(parent));
    birth.blocking = config_blocking(config);
    birth.parent = parent;
    // NCCL asks the parent's configuration; where that was not seen, the child's is a hint. To
    // share a gate without need only lets calls wait for each other.
    birth.shares = config_sharing(config, parent);
    birth.shares_resources = birth.shares.splits || (parent && parent->identity().shares.splits);
    const bool inside = parent && parent->gate().enter(*parent);
    const int result = api().ncclCommSplit(comm, colour, key, out, config);
    if (inside) {
        parent->gate().leave();
    }
    return colour == kSplitNoColor ? result : after_birth(result, std::move(birth));
}

int on_ncclCommShrink(Comm comm, int* excluded, int excluded_count, Comm* out, Config* config,
                      int flags) {
    constexpr int kShrinkAbort = 1;
    const core::CommunicatorPtr parent = registrar().find(comm);
    std::uint64_t colour = 0;
    for (int i = 0; i < excluded_count; ++i) {
        colour = key_of_child(colour, "without", excluded[i], 0);
    }
    Birth birth;
    birth.out = out;
    birth.device = parent ? parent->identity().device : current_device();
    birth.key = key_of_child(parent ? parent->identity().key : 0, "shrink",
                             static_cast<std::int64_t>(colour), next_child(parent));
    birth.blocking = config_blocking(config);
    birth.parent = parent;
    birth.shares = config_sharing(config, parent);
    birth.shares_resources =
        (flags & kShrinkAbort) == 0 &&
        (birth.shares.shrinks || (parent && parent->identity().shares.shrinks));
    // With the abort flag the parent may hang in another thread, and this call is what ends that:
    // no waiting for it.
    const bool inside = parent && (flags & kShrinkAbort) == 0 && parent->gate().enter(*parent);
    const int result = api().ncclCommShrink(comm, excluded, excluded_count, out, config, flags);
    if (inside) {
        parent->gate().leave();
    }
    return after_birth(result, std::move(birth));
}

// Ranks that join know the unique id and nothing of the parent; of the others only one knows the
// id. So nothing that all pass to NCCL could be a key for all: those that join have another one.
int on_ncclCommGrow(Comm comm, int size, const UniqueId* id, int rank, Comm* out, Config* config) {
    const core::CommunicatorPtr parent = registrar().find(comm);
    Birth birth;
    birth.out = out;
    birth.device = parent ? parent->identity().device : current_device();
    birth.rank = parent ? parent->identity().rank : rank;
    birth.size = size;
    birth.key = parent || id == nullptr ? key_of_child(parent ? parent->identity().key : 0, "grow",
                                                       size, next_child(parent))
                                        : key_of_unique_ids({id, 1});
    birth.blocking = config_blocking(config);
    birth.parent = parent;
    birth.shares = config_sharing(config, parent);
    const bool inside = parent && parent->gate().enter(*parent);
    const int result = api().ncclCommGrow(comm, size, id, rank, out, config);
    if (inside) {
        parent->gate().leave();
    }
    return after_birth(result, std::move(birth));
}

int on_ncclCommGetAsyncError(Comm comm, int* state) {
    const int result = api().ncclCommGetAsyncError(comm, state);
    if (result != kSuccess || *state == kInProgress) {
        return result;
    }
    ThreadGroup& group = ThreadGroup::mine();
    if (*state != kSuccess) {
        if (!group.open()) {
            group.drop_expected();
        }
        return result;
    }
    if (!group.open()) {
        group.deliver_all(registrar());
    }
    // It may just have become ready: what waited for that is registered now.
    if (const core::CommunicatorPtr communicator = registrar().find(comm)) {
        communicator->gate().poke();
    }
    return result;
}

// --- communicators that end ---

int on_ncclCommFinalize(Comm comm) {
    registrar().retire(comm);
    return api().ncclCommFinalize(comm);
}

int on_ncclCommDestroy(Comm comm) {
    ThreadGroup::mine().drop_expected_of(comm);
    registrar().retire(comm);
    const int result = api().ncclCommDestroy(comm);
    registrar().ended(comm);
    return result;
}

int on_ncclCommAbort(Comm comm) {
    ThreadGroup::mine().drop_expected_of(comm);
    const core::Registrar::Ending ending = registrar().kill(comm);
    const int result = api().ncclCommAbort(comm);
    registrar().ended(comm);
    return result;
}

int on_ncclCommRevoke(Comm comm, int flags) {
    const core::Registrar::Ending ending = registrar().kill(comm);
    return api().ncclCommRevoke(comm, flags);
}

} // namespace

void set_local_mode(LocalMode mode) noexcept {
    local_mode.store(mode, std::memory_order_relaxed);
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
