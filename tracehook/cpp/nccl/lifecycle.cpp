// Communicators that begin and end.
#include "nccl/birth.h"
#include "nccl/caller.h"
#include "nccl/importers.h"
#include "nccl/interpose.h"
#include "nccl/key.h"
#include "nccl/wrappers.h"

#include <atomic>

namespace tracehook::nccl {

namespace {

std::atomic<LocalMode> local_mode{LocalMode::kAuto};

} // namespace

void set_local_mode(LocalMode mode) noexcept {
    local_mode.store(mode, std::memory_order_relaxed);
}

registrar::Local local_of(bool registers_itself) noexcept {
    switch (local_mode.load(std::memory_order_relaxed)) {
    case LocalMode::kOurs:
        return registrar::Local::kOurs;
    case LocalMode::kObserve:
        return registrar::Local::kObserved;
    case LocalMode::kOff:
        return registrar::Local::kOff;
    case LocalMode::kAuto:
    case LocalMode::kAll:
        break;
    }
    return registers_itself ? registrar::Local::kObserved : registrar::Local::kOurs;
}

namespace {

// Before the call that makes `birth`, which waits for the other ranks: all those of the parent, if
// there is one, or those that `size` counts.
void announce(Birth& birth, const registrar::CommunicatorPtr& parent = nullptr,
              std::uint64_t child = 0) {
    birth.announced = registrar().announce({birth.key, birth.rank, birth.size,
                                            parent ? parent->identity().key : 0,
                                            static_cast<std::uint32_t>(child)});
}

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
    } else if (birth.has_handle()) {
        deliver(registrar(), birth);
    } else if (result == kInProgress) {
        group.expect_in_progress(std::move(birth));
    }
    return result;
}

// The same of one that is no child: NCCL has written its handle by now, also in a group, and the
// caller need not keep the variable (seen with NCCL 2.28.9 on H200s; nccl4py returns from it).
int after_init(int result, Birth birth) {
    if (result == kSuccess || result == kInProgress) {
        birth.has_handle();
    }
    return after_birth(result, std::move(birth));
}

// Makes a child by `call`, inside the gate of the parent.
template <typename Call>
int make_child(const registrar::CommunicatorPtr& parent, const Call& call) {
    const bool inside = parent && parent->gate().enter(*parent);
    const int result = call();
    if (inside) {
        parent->gate().leave();
    }
    return result;
}

// Children are counted per parent, by every rank of it: split and shrink are collective calls.
std::uint64_t next_child(const registrar::CommunicatorPtr& parent) {
    return parent ? parent->next_child() : 0;
}

} // namespace

int on_ncclCommInitRank(Comm* out, int size, UniqueId id, int rank) {
    Birth birth{out,  key_of_unique_ids({&id, 1}), current_device(), rank, size, true, nullptr,
                false};
    birth.shares = config_sharing(nullptr);
    announce(birth);
    return after_init(api().ncclCommInitRank(out, size, id, rank), std::move(birth));
}

int on_ncclCommInitRankConfig(Comm* out, int size, UniqueId id, int rank, Config* config) {
    Birth birth{out,  key_of_unique_ids({&id, 1}), current_device(), rank,
                size, config_blocking(config),     nullptr,          false};
    birth.shares = config_sharing(config);
    announce(birth);
    return after_init(api().ncclCommInitRankConfig(out, size, id, rank, config), std::move(birth));
}

int on_ncclCommInitRankScalable(Comm* out, int size, int rank, int id_count, UniqueId* ids,
                                Config* config) {
    const std::span<const UniqueId> all(ids, static_cast<std::size_t>(id_count));
    Birth birth{out,  key_of_unique_ids(all),  current_device(), rank,
                size, config_blocking(config), nullptr,          false};
    birth.shares = config_sharing(config);
    announce(birth);
    return after_init(api().ncclCommInitRankScalable(out, size, rank, id_count, ids, config),
                      std::move(birth));
}

int on_ncclCommInitAll(Comm* out, int count, const int* devices) {
    static std::atomic<std::uint64_t> calls{0};
    const std::uint64_t key = key_of_own_devices(count, calls.fetch_add(1));
    const int result = api().ncclCommInitAll(out, count, devices);
    for (int rank = 0; rank < count; ++rank) {
        Birth birth{out + rank, key,  devices != nullptr ? devices[rank] : rank, rank, count, true,
                    nullptr,    false};
        birth.shares = config_sharing(nullptr);
        after_init(result, std::move(birth));
        if (result == 0) {
            // NCCL uses no registration between devices of one process.
            if (const registrar::CommunicatorPtr made = registrar().find(out[rank])) {
                made->agree_on_calls(false);
            }
        }
    }
    return result;
}

int on_ncclCommSplit(Comm comm, int colour, int key, Comm* out, Config* config) {
    const registrar::CommunicatorPtr parent = registrar().find(comm);
    const std::uint64_t child = next_child(parent);
    Birth birth;
    birth.out = out;
    birth.device = parent ? parent->identity().device : current_device();
    birth.key = key_of_child(parent ? parent->identity().key : 0, "split", colour, child);
    birth.blocking = config_blocking(config);
    birth.parent = parent;
    birth.made_from = comm;
    // NCCL asks the parent's configuration; where that was not seen, the child's is a hint. To
    // share a gate without need only lets calls wait for each other.
    birth.shares = config_sharing(config, parent);
    birth.shares_resources = birth.shares.splits || (parent && parent->identity().shares.splits);
    announce(birth, parent, child);
    const int result =
        make_child(parent, [&] { return api().ncclCommSplit(comm, colour, key, out, config); });
    return colour == kSplitNoColor ? result : after_birth(result, std::move(birth));
}

int on_ncclCommShrink(Comm comm, int* excluded, int excluded_count, Comm* out, Config* config,
                      int flags) {
    constexpr int kShrinkAbort = 1;
    const registrar::CommunicatorPtr parent = registrar().find(comm);
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
    birth.made_from = comm;
    birth.shares = config_sharing(config, parent);
    birth.shares_resources =
        (flags & kShrinkAbort) == 0 &&
        (birth.shares.shrinks || (parent && parent->identity().shares.shrinks));
    // With the abort flag the parent may hang in another thread, and this call is what ends that:
    // no waiting for it.
    const auto call = [&] {
        return api().ncclCommShrink(comm, excluded, excluded_count, out, config, flags);
    };
    birth.size = parent ? parent->identity().size - excluded_count : -1;
    announce(birth);
    birth.size = -1; // NCCL says it
    const int result = (flags & kShrinkAbort) != 0 ? call() : make_child(parent, call);
    return after_birth(result, std::move(birth));
}

// Ranks that join know the unique id and nothing of the parent; of the others only one knows the
// id. So nothing that all pass to NCCL could be a key for all: those that join have another one.
int on_ncclCommGrow(Comm comm, int size, const UniqueId* id, int rank, Comm* out, Config* config) {
    const registrar::CommunicatorPtr parent = registrar().find(comm);
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
    birth.made_from = comm;
    birth.shares = config_sharing(config, parent);
    announce(birth);
    const int result =
        make_child(parent, [&] { return api().ncclCommGrow(comm, size, id, rank, out, config); });
    return after_birth(result, std::move(birth));
}

int on_ncclCommGetAsyncError(Comm comm, int* state) {
    const int result = api().ncclCommGetAsyncError(comm, state);
    if (result != kSuccess || *state == kInProgress) {
        return result;
    }
    if (registrar().abandoned()) {
        return result; // in a forked child everything below is the parent's
    }
    if (*state != kSuccess) {
        BirthsInProgress::instance().drop(comm);
        return result;
    }
    if (ThreadGroup& group = ThreadGroup::mine(); !group.open()) {
        group.deliver_all(registrar());
    }
    // It may just have become ready: what waited for that is registered now.
    if (const registrar::CommunicatorPtr communicator = registrar().find(comm)) {
        communicator->gate().poke();
    }
    return result;
}

// --- communicators that end ---

int on_ncclCommFinalize(Comm comm) {
    registrar().retire(comm);
    return api().ncclCommFinalize(comm);
}

namespace {

// In a group NCCL ends the communicator with it.
template <typename Call> int end(Comm comm, Ending::How how, const Call& call) {
    if (registrar().abandoned()) {
        return call(comm);
    }
    ThreadGroup& group = ThreadGroup::mine();
    group.drop_births_of(comm);
    auto ending = std::make_unique<Ending>(registrar(), comm, how);
    const int result = call(comm);
    if (group.open()) {
        ending->returned();
        group.expect(std::move(ending));
    }
    return result;
}

} // namespace

int on_ncclCommDestroy(Comm comm) {
    return end(comm, Ending::How::kDestroy, api().ncclCommDestroy);
}

int on_ncclCommAbort(Comm comm) {
    return end(comm, Ending::How::kAbort, api().ncclCommAbort);
}

int on_ncclCommRevoke(Comm comm, int flags) {
    const registrar::Registrar::Ending ending = registrar().kill(comm);
    return api().ncclCommRevoke(comm, flags);
}

} // namespace tracehook::nccl
