#include "operation.h"

#include "calls.h"
#include "reduction.h"
#include "rehearsal/cuda/device.h"

#include <array>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::array<Shape, static_cast<std::size_t>(Kind::kCount)> kShapes = {{
    // name           reduces rooted all_send all_receive send_per_rank receive_per_rank
    {"ncclAllReduce", true, false, true, true, false, false},
    {"ncclReduce", true, true, true, false, false, false},
    {"ncclReduceScatter", true, false, true, true, true, false},
    {"ncclBroadcast", false, true, false, true, false, false},
    {"ncclAllGather", false, false, true, true, false, true},
    {"ncclAlltoAll", false, false, true, true, true, true},
    {"ncclGather", false, true, true, false, false, true},
    {"ncclScatter", false, true, false, true, true, false},
    {"ncclSend", false, true, true, false, false, false},
    {"ncclRecv", false, true, false, true, false, false},
}};

bool on_device(std::uintptr_t begin, std::uintptr_t end) {
    while (begin < end) {
        std::uintptr_t base = 0;
        std::size_t bytes = 0;
        if (emu_memory_find(reinterpret_cast<const void*>(begin), 1, &base, &bytes, nullptr) == 0) {
            return false;
        }
        begin = base + bytes;
    }
    return true;
}

bool on_host(std::uintptr_t begin, std::uintptr_t end) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    begin &= ~(page - 1);
    std::vector<unsigned char> pages((end - begin + page - 1) / page);
    return mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()) == 0;
}

Result check_buffer(const Communicator& communicator, const Operation& operation, const char* which,
                    const void* pointer, std::size_t size) {
    if (size == 0) {
        return kSuccess;
    }
    const char* name = shape(operation.kind).name;
    if (pointer == nullptr) {
        return failed(kInvalidArgument, std::string(name) + ": the " + which + " buffer is null");
    }
    if (!is_mapped(pointer, size)) {
        report(Rule::kM2, communicator.subject(), "%s, %s buffer %p of %zu bytes", name, which,
               pointer, size);
        return failed(kInvalidArgument,
                      std::string(name) + ": the " + which + " buffer is not mapped");
    }
    return kSuccess;
}

} // namespace

const Shape& shape(Kind kind) {
    return kShapes[static_cast<std::size_t>(kind)];
}

bool Operation::sends(int rank) const {
    return shape(kind).all_send || (!between_two() && rank == peer);
}

bool Operation::receives(int rank) const {
    return shape(kind).all_receive || (!between_two() && rank == peer);
}

std::size_t Operation::block() const {
    return count * element_size(type);
}

std::size_t Operation::send_bytes(int rank, int ranks) const {
    const std::size_t blocks = shape(kind).send_per_rank ? static_cast<std::size_t>(ranks) : 1;
    return sends(rank) ? block() * blocks : 0;
}

std::size_t Operation::receive_bytes(int rank, int ranks) const {
    const std::size_t blocks = shape(kind).receive_per_rank ? static_cast<std::size_t>(ranks) : 1;
    return receives(rank) ? block() * blocks : 0;
}

bool is_mapped(const void* pointer, std::size_t size) {
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    return on_device(begin, begin + size) || on_host(begin, begin + size);
}

Result check_operation(const Communicator& communicator, const Operation& operation) {
    const Shape& kind = shape(operation.kind);
    const std::string name = kind.name;
    if (element_size(operation.type) == 0) {
        return failed(kInvalidArgument, name + ": no such data type");
    }
    const bool has_peer = operation.peer >= 0 && operation.peer < communicator.ranks();
    if (kind.rooted && !has_peer) {
        return failed(kInvalidArgument, name + ": no such rank: " + std::to_string(operation.peer));
    }
    const bool made = operation.op >= kNumOps;
    if (operation.op < 0 || (made && !operation.multiply.live)) {
        return failed(kInvalidArgument, name + ": no such operator");
    }
    if (made && operation.multiply.type != operation.type) {
        return failed(kInvalidArgument, name + ": the operator was made for another data type");
    }
    const int rank = communicator.rank();
    const int ranks = communicator.ranks();
    if (const Result result = check_buffer(communicator, operation, "send", operation.send,
                                           operation.send_bytes(rank, ranks));
        result != kSuccess) {
        return result;
    }
    return check_buffer(communicator, operation, "receive", operation.receive,
                        operation.receive_bytes(rank, ranks));
}

} // namespace tracehook::rehearsal::nccl
