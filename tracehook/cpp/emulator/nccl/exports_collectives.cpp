// The exported collectives and point-to-point functions.
#include "calls.h"
#include "entry.h"
#include "exports.h"
#include "group.h"
#include "operation.h"

using namespace tracehook::emulator::nccl;

namespace {

// Every operation comes this way: admitted, completed, checked, and kept or launched.
Result operate(const char* call, Operation operation, Comm handle, Stream stream) {
    const Entry entry(call, handle, Access::kUse);
    if (entry.refused()) {
        return note(entry.result());
    }
    const auto& operators = entry.communicator()->operators();
    const auto made = static_cast<std::size_t>(operation.op) - kNumOps;
    if (operation.op >= kNumOps && made < operators.size()) {
        operation.multiply = operators[made];
    }
    const Result result = check_operation(*entry.communicator(), operation);
    if (result != kSuccess) {
        return note(result);
    }
    return submit(call, {entry.communicator(), operation, stream});
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
