// The exported collectives and point-to-point functions.
#include "calls.h"
#include "entry.h"
#include "exports.h"
#include "group.h"
#include "operation.h"

using namespace tracehook::rehearsal::nccl;

namespace {

// Every operation comes this way: admitted, completed, checked, and kept or launched.
Result operate(const char* call, Operation operation, Comm handle, Stream stream) {
    const Entry entry(call, handle, Access::kUse);
    if (entry.refused()) {
        return note(entry.result());
    }
    if (const PreMultiply* const made = entry.communicator()->find_operator(operation.op)) {
        operation.multiply = *made;
    }
    const Result result = check_operation(*entry.communicator(), operation);
    if (result != kSuccess) {
        return note(result);
    }
    return submit(call, {entry.communicator(), operation, stream});
}

// With settings for this call alone, of which each rank's NCCL looks at its own.
Result operate_as(const char* call, Operation operation, Comm handle, Stream stream,
                  const CollConfig* config) {
    if (config != nullptr && config->magic != kConfigMagic) {
        const Entry entry(call, handle, Access::kUse);
        return note(failed(kInvalidArgument, std::string(call) +
                                                 ": the configuration was not made with "
                                                 "NCCL_COLLCONFIG_INITIALIZER"));
    }
    return operate(call, operation, handle, stream);
}

} // namespace

// A collective, and the same with a configuration (since 2.31): its kind, its reduction and its
// root, and the parameters that it has for these.
#define COLLECTIVE(name, kind, op, root, ...)                                                      \
    TRACEHOOK_NCCL(Result, name, const void* send, void* receive, std::size_t count,               \
                   DataType type, __VA_ARGS__ __VA_OPT__(, ) Comm comm, Stream stream) {           \
        return operate(#name, {kind, send, receive, count, type, op, root}, comm, stream);         \
    }                                                                                              \
    TRACEHOOK_NCCL(Result, name##Config, const void* send, void* receive, std::size_t count,       \
                   DataType type, __VA_ARGS__ __VA_OPT__(, ) Comm comm, Stream stream,             \
                   const CollConfig* config) {                                                     \
        return operate_as(#name "Config", {kind, send, receive, count, type, op, root}, comm,      \
                          stream, config);                                                         \
    }

COLLECTIVE(ncclAllReduce, Kind::kAllReduce, op, -1, int op)
COLLECTIVE(ncclReduce, Kind::kReduce, op, root, int op, int root)
COLLECTIVE(ncclReduceScatter, Kind::kReduceScatter, op, -1, int op)
COLLECTIVE(ncclBroadcast, Kind::kBroadcast, kSum, root, int root)
COLLECTIVE(ncclAllGather, Kind::kAllGather, kSum, -1)
COLLECTIVE(ncclAlltoAll, Kind::kAllToAll, kSum, -1)
COLLECTIVE(ncclGather, Kind::kGather, kSum, root, int root)
COLLECTIVE(ncclScatter, Kind::kScatter, kSum, root, int root)

#undef COLLECTIVE

TRACEHOOK_NCCL(Result, ncclBcast, void* buffer, std::size_t count, DataType type, int root,
               Comm comm, Stream stream) {
    return operate("ncclBcast", {Kind::kBroadcast, buffer, buffer, count, type, kSum, root}, comm,
                   stream);
}

TRACEHOOK_NCCL(Result, ncclSend, const void* send, std::size_t count, DataType type, int peer,
               Comm comm, Stream stream) {
    return operate("ncclSend", {Kind::kSend, send, nullptr, count, type, kSum, peer}, comm, stream);
}

TRACEHOOK_NCCL(Result, ncclRecv, void* receive, std::size_t count, DataType type, int peer,
               Comm comm, Stream stream) {
    return operate("ncclRecv", {Kind::kReceive, nullptr, receive, count, type, kSum, peer}, comm,
                   stream);
}
