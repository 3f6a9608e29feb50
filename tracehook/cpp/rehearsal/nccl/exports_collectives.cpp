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

TRACEHOOK_NCCL(Result, ncclAllReduce, const void* send, void* receive, std::size_t count,
               DataType type, int op, Comm comm, Stream stream) {
    return operate("ncclAllReduce", {Kind::kAllReduce, send, receive, count, type, op}, comm,
                   stream);
}

TRACEHOOK_NCCL(Result, ncclReduce, const void* send, void* receive, std::size_t count,
               DataType type, int op, int root, Comm comm, Stream stream) {
    return operate("ncclReduce", {Kind::kReduce, send, receive, count, type, op, root}, comm,
                   stream);
}

TRACEHOOK_NCCL(Result, ncclReduceScatter, const void* send, void* receive, std::size_t count,
               DataType type, int op, Comm comm, Stream stream) {
    return operate("ncclReduceScatter", {Kind::kReduceScatter, send, receive, count, type, op},
                   comm, stream);
}

TRACEHOOK_NCCL(Result, ncclBroadcast, const void* send, void* receive, std::size_t count,
               DataType type, int root, Comm comm, Stream stream) {
    return operate("ncclBroadcast", {Kind::kBroadcast, send, receive, count, type, kSum, root},
                   comm, stream);
}

TRACEHOOK_NCCL(Result, ncclBcast, void* buffer, std::size_t count, DataType type, int root,
               Comm comm, Stream stream) {
    return operate("ncclBcast", {Kind::kBroadcast, buffer, buffer, count, type, kSum, root}, comm,
                   stream);
}

TRACEHOOK_NCCL(Result, ncclAllGather, const void* send, void* receive, std::size_t count,
               DataType type, Comm comm, Stream stream) {
    return operate("ncclAllGather", {Kind::kAllGather, send, receive, count, type}, comm, stream);
}

TRACEHOOK_NCCL(Result, ncclAlltoAll, const void* send, void* receive, std::size_t count,
               DataType type, Comm comm, Stream stream) {
    return operate("ncclAlltoAll", {Kind::kAllToAll, send, receive, count, type}, comm, stream);
}

TRACEHOOK_NCCL(Result, ncclGather, const void* send, void* receive, std::size_t count,
               DataType type, int root, Comm comm, Stream stream) {
    return operate("ncclGather", {Kind::kGather, send, receive, count, type, kSum, root}, comm,
                   stream);
}

TRACEHOOK_NCCL(Result, ncclScatter, const void* send, void* receive, std::size_t count,
               DataType type, int root, Comm comm, Stream stream) {
    return operate("ncclScatter", {Kind::kScatter, send, receive, count, type, kSum, root}, comm,
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

// --- with a configuration: since 2.31 ---

TRACEHOOK_NCCL(Result, ncclAllReduceConfig, const void* send, void* receive, std::size_t count,
               DataType type, int op, Comm comm, Stream stream, const CollConfig* config) {
    return operate_as("ncclAllReduceConfig", {Kind::kAllReduce, send, receive, count, type, op},
                      comm, stream, config);
}

TRACEHOOK_NCCL(Result, ncclReduceConfig, const void* send, void* receive, std::size_t count,
               DataType type, int op, int root, Comm comm, Stream stream,
               const CollConfig* config) {
    return operate_as("ncclReduceConfig", {Kind::kReduce, send, receive, count, type, op, root},
                      comm, stream, config);
}

TRACEHOOK_NCCL(Result, ncclReduceScatterConfig, const void* send, void* receive, std::size_t count,
               DataType type, int op, Comm comm, Stream stream, const CollConfig* config) {
    return operate_as("ncclReduceScatterConfig",
                      {Kind::kReduceScatter, send, receive, count, type, op}, comm, stream, config);
}

TRACEHOOK_NCCL(Result, ncclBroadcastConfig, const void* send, void* receive, std::size_t count,
               DataType type, int root, Comm comm, Stream stream, const CollConfig* config) {
    return operate_as("ncclBroadcastConfig",
                      {Kind::kBroadcast, send, receive, count, type, kSum, root}, comm, stream,
                      config);
}

TRACEHOOK_NCCL(Result, ncclAllGatherConfig, const void* send, void* receive, std::size_t count,
               DataType type, Comm comm, Stream stream, const CollConfig* config) {
    return operate_as("ncclAllGatherConfig", {Kind::kAllGather, send, receive, count, type}, comm,
                      stream, config);
}

TRACEHOOK_NCCL(Result, ncclAlltoAllConfig, const void* send, void* receive, std::size_t count,
               DataType type, Comm comm, Stream stream, const CollConfig* config) {
    return operate_as("ncclAlltoAllConfig", {Kind::kAllToAll, send, receive, count, type}, comm,
                      stream, config);
}

TRACEHOOK_NCCL(Result, ncclGatherConfig, const void* send, void* receive, std::size_t count,
               DataType type, int root, Comm comm, Stream stream, const CollConfig* config) {
    return operate_as("ncclGatherConfig", {Kind::kGather, send, receive, count, type, kSum, root},
                      comm, stream, config);
}

TRACEHOOK_NCCL(Result, ncclScatterConfig, const void* send, void* receive, std::size_t count,
               DataType type, int root, Comm comm, Stream stream, const CollConfig* config) {
    return operate_as("ncclScatterConfig", {Kind::kScatter, send, receive, count, type, kSum, root},
                      comm, stream, config);
}
