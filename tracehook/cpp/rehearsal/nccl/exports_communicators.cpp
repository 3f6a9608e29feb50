// The exported functions that make, end and describe communicators.
#include "calls.h"
#include "exports.h"
#include "group.h"
#include "handles.h"
#include "lifecycle.h"
#include "nccl/key.h"
#include "settings.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <sys/random.h>
#include <utility>

using namespace tracehook::rehearsal::nccl;

namespace {

constexpr int kShrinkAbort = 1; // NCCL_SHRINK_ABORT

// An id of ncclCommGetUniqueId leads to the key that the ranks of the communicator give to what
// grows out of it.
struct GrowId {
    char magic[16];
    Key key;
};
static_assert(sizeof(GrowId) <= sizeof(UniqueId));
constexpr GrowId kGrow{"tracehook-grown", {}};

Key key_of(const UniqueId& id) {
    if (std::memcmp(id.internal, kGrow.magic, sizeof kGrow.magic) == 0) {
        GrowId grown;
        std::memcpy(&grown, id.internal, sizeof grown);
        return grown.key;
    }
    return Key::of({id.internal, sizeof id.internal});
}

std::string_view bytes_of(std::span<const UniqueId> ids) {
    return {ids.data()->internal, ids.size_bytes()};
}

Result create_from(const char* call, Comm* out, int ranks, std::span<const UniqueId> ids, int rank,
                   const Config* config) {
    const Entry entry(call);
    return note(entry.refused() ? entry.result()
                                : create(entry, out, key_of(ids[0]), name_of(bytes_of(ids), config),
                                         ranks, rank, config));
}

template <typename Answer, typename Question>
Result ask(const char* call, Comm handle, Answer* answer, Question read,
           Access access = Access::kQuery) {
    const Entry entry(call, handle, access);
    if (entry.refused()) {
        return entry.result();
    }
    if (answer == nullptr) {
        return failed(kInvalidArgument, std::string(call) + ": the pointer is null");
    }
    *answer = read(*entry.communicator());
    return kSuccess;
}

// Nothing happens to no communicator.
Result end(const char* call, Comm handle, Access access, Result (*how)(const Entry& entry)) {
    if (handle == nullptr) {
        return kSuccess;
    }
    const Entry entry(call, handle, access);
    return entry.refused() ? entry.result() : how(entry);
}

} // namespace

TRACEHOOK_NCCL(Result, ncclGetVersion, int* version) {
    count_call("ncclGetVersion");
    if (version == nullptr) {
        return failed(kInvalidArgument, "ncclGetVersion: the pointer is null");
    }
    *version = settings().version;
    return kSuccess;
}

TRACEHOOK_NCCL(Result, ncclGetUniqueId, UniqueId* id) {
    const Entry entry("ncclGetUniqueId");
    if (entry.refused()) {
        return entry.result();
    }
    if (id == nullptr || getrandom(id->internal, sizeof id->internal, 0) != sizeof id->internal) {
        return failed(kInvalidArgument, "ncclGetUniqueId: the pointer is null");
    }
    return kSuccess;
}

TRACEHOOK_NCCL(Result, ncclCommInitRank, Comm* out, int ranks, UniqueId id, int rank) {
    return create_from("ncclCommInitRank", out, ranks, {&id, 1}, rank, nullptr);
}

TRACEHOOK_NCCL(Result, ncclCommInitRankConfig, Comm* out, int ranks, UniqueId id, int rank,
               Config* config) {
    return create_from("ncclCommInitRankConfig", out, ranks, {&id, 1}, rank, config);
}

TRACEHOOK_NCCL(Result, ncclCommInitRankScalable, Comm* out, int ranks, int rank, int id_count,
               UniqueId* ids, Config* config) {
    if (ids == nullptr || id_count < 1) {
        return note(failed(kInvalidArgument, "ncclCommInitRankScalable: there is no unique id"));
    }
    return create_from("ncclCommInitRankScalable", out, ranks,
                       {ids, static_cast<std::size_t>(id_count)}, rank, config);
}

TRACEHOOK_NCCL(Result, ncclCommInitAll, Comm* out, int ranks, const int* devices) {
    const Entry entry("ncclCommInitAll");
    if (entry.refused()) {
        return entry.result();
    }
    UniqueId id{};
    if (getrandom(id.internal, sizeof id.internal, 0) != sizeof id.internal) {
        return failed(kSystemError, "ncclCommInitAll: no random numbers");
    }
    static std::atomic<std::uint64_t> calls{0}; // as tracehook's log counts them
    const std::uint64_t number = calls.fetch_add(1);
    group_start();
    for (int rank = 0; rank < ranks; ++rank) {
        const DeviceScope scope(devices == nullptr ? rank : devices[rank]);
        Name name{tracehook::nccl::key_of_own_devices(ranks, number), ""};
        note(create(entry, out + rank, key_of(id), std::move(name), ranks, rank, nullptr));
    }
    return group_end();
}

TRACEHOOK_NCCL(Result, ncclCommSplit, Comm handle, int color, int key, Comm* out, Config* config) {
    const Entry entry("ncclCommSplit", handle, Access::kChild);
    return note(entry.refused() ? entry.result() : split(entry, color, key, out, config));
}

TRACEHOOK_NCCL(Result, ncclCommShrink, Comm handle, int* excluded, int count, Comm* out,
               Config* config, int flags) {
    const Entry entry("ncclCommShrink", handle, Access::kChild);
    if (entry.refused()) {
        return note(entry.result());
    }
    if (excluded == nullptr || count < 1) {
        return note(failed(kInvalidArgument, "ncclCommShrink: no rank is excluded"));
    }
    return note(
        shrink(entry, {excluded, excluded + count}, out, config, (flags & kShrinkAbort) != 0));
}

TRACEHOOK_NCCL(Result, ncclCommGetUniqueId, Comm handle, UniqueId* id) {
    const Entry entry("ncclCommGetUniqueId", handle, Access::kQuery);
    if (entry.refused()) {
        return entry.result();
    }
    if (id == nullptr) {
        return failed(kInvalidArgument, "ncclCommGetUniqueId: the pointer is null");
    }
    GrowId grown = kGrow;
    grown.key = grow_key(*entry.communicator());
    std::memcpy(id->internal, &grown, sizeof grown);
    return kSuccess;
}

// Ranks that are in the communicator have no rank here, new ones no communicator; of the former
// only one has the id.
TRACEHOOK_NCCL(Result, ncclCommGrow, Comm handle, int ranks, const UniqueId* id, int rank,
               Comm* out, Config* config) {
    if (handle == nullptr) {
        return id != nullptr ? create_from("ncclCommGrow", out, ranks, {id, 1}, rank, config)
                             : note(failed(kInvalidArgument, "ncclCommGrow: neither a "
                                                             "communicator nor a unique id"));
    }
    const Entry entry("ncclCommGrow", handle, Access::kChild);
    return note(entry.refused() ? entry.result() : grow(entry, ranks, out, config));
}

TRACEHOOK_NCCL(Result, ncclCommSuspend, Comm handle, int flags) {
    const Entry entry("ncclCommSuspend", handle, Access::kBooks);
    if (entry.refused() || (flags & kSuspendMemory) == 0) { // the only flag that does something
        return entry.result();
    }
    return suspend(entry);
}

TRACEHOOK_NCCL(Result, ncclCommResume, Comm handle) {
    const Entry entry("ncclCommResume", handle, Access::kAny);
    return entry.refused() ? entry.result() : resume(entry);
}

TRACEHOOK_NCCL(Result, ncclCommMemStats, Comm handle, int stat, std::uint64_t* value) {
    const Entry entry("ncclCommMemStats", handle, Access::kAny);
    if (entry.refused()) {
        return entry.result();
    }
    if (value == nullptr) {
        return failed(kInvalidArgument, "ncclCommMemStats: the pointer is null");
    }
    return memory_stat(*entry.communicator(), stat, *value);
}

TRACEHOOK_NCCL(Result, ncclCommFinalize, Comm handle) {
    return end("ncclCommFinalize", handle, Access::kEnd, finalize);
}

TRACEHOOK_NCCL(Result, ncclCommDestroy, Comm handle) {
    return end("ncclCommDestroy", handle, Access::kEnd, destroy);
}

TRACEHOOK_NCCL(Result, ncclCommAbort, Comm handle) {
    return end("ncclCommAbort", handle, Access::kAny, abort_communicator);
}

TRACEHOOK_NCCL(Result, ncclCommRevoke, Comm handle, int) {
    const Entry entry("ncclCommRevoke", handle, Access::kAny);
    return entry.refused() ? entry.result() : revoke(entry);
}

TRACEHOOK_NCCL(Result, ncclCommGetAsyncError, Comm handle, Result* error) {
    return ask(
        "ncclCommGetAsyncError", handle, error,
        [](const Communicator& c) { return c.async_result(); }, Access::kAny);
}

TRACEHOOK_NCCL(Result, ncclCommCount, Comm handle, int* count) {
    return ask("ncclCommCount", handle, count, [](const Communicator& c) { return c.ranks(); });
}

TRACEHOOK_NCCL(Result, ncclCommCuDevice, Comm handle, int* device) {
    return ask("ncclCommCuDevice", handle, device,
               [](const Communicator& c) { return c.device(); });
}

TRACEHOOK_NCCL(Result, ncclCommUserRank, Comm handle, int* rank) {
    return ask("ncclCommUserRank", handle, rank, [](const Communicator& c) { return c.rank(); });
}

TRACEHOOK_NCCL(const char*, ncclGetErrorString, Result result) {
    constexpr std::array<const char*, 9> kTexts = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
        "timeout"};
    const bool known = result >= 0 && static_cast<std::size_t>(result) < kTexts.size();
    return known ? kTexts[result] : "unknown result code";
}

// With a communicator that failed behind the caller's back, the text of that failure.
TRACEHOOK_NCCL(const char*, ncclGetLastError, Comm handle) {
    const Found found = find_handle(handle);
    if (found.communicator != nullptr && !found.communicator->async_text().empty()) {
        failed(kSuccess, found.communicator->async_text());
    }
    return last_error();
}

TRACEHOOK_NCCL(Result, ncclGroupStart) {
    const Entry entry("ncclGroupStart");
    if (!entry.refused()) {
        group_start();
    }
    return entry.result();
}

TRACEHOOK_NCCL(Result, ncclGroupEnd) {
    const Entry entry("ncclGroupEnd");
    note(entry.result());
    return group_end();
}

TRACEHOOK_NCCL(Result, ncclGroupSimulateEnd, Simulation* simulation) {
    count_call("ncclGroupSimulateEnd");
    if (simulation != nullptr) {
        simulation->estimated_time = 0;
    }
    return group_end("ncclGroupSimulateEnd", false);
}

TRACEHOOK_NCCL(void, ncclResetDebugInit) {
    count_call("ncclResetDebugInit");
}
