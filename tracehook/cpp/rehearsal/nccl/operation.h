// One collective or point-to-point operation, as one rank asked for it.
#pragma once

#include "communicator.h"
#include "names.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tracehook::rehearsal::nccl {

enum class Kind : std::uint32_t {
    kAllReduce,
    kReduce,
    kReduceScatter,
    kBroadcast,
    kAllGather,
    kAllToAll,
    kGather,
    kScatter,
    kSend,
    kReceive,
    kCount
};

// What a kind reads and writes: whose buffers count, and whether a buffer holds one block of
// `count` elements or one a rank.
struct Shape {
    const char* name; // NCCL's
    bool reduces;
    bool rooted;
    bool all_send; // otherwise only the root (or the sender)
    bool all_receive;
    bool send_per_rank;
    bool receive_per_rank;
};

const Shape& shape(Kind kind);

struct Operation {
    Kind kind;
    const void* send;
    void* receive;
    std::size_t count;
    DataType type;
    int op = kSum;
    int peer = -1; // the root, or the other side
    PreMultiply multiply{};
    std::uint64_t sequence =
        0; // of this run: among the collectives, or the messages to or from `peer`
    bool send_registered = false;
    bool receive_registered = false;
    std::weak_ptr<const void> send_record{}; // in use while the operation runs
    std::weak_ptr<const void> receive_record{};
    Placement send_placement{};
    Placement receive_placement{};
    std::uint8_t in_effect = 0; // bits of effect.h
    // The memory that NCCL registered for a graph (emu_memory_number).
    std::uint64_t send_memory = 0;
    std::uint64_t receive_memory = 0;

    bool between_two() const { return kind == Kind::kSend || kind == Kind::kReceive; }
    bool sends(int rank) const;
    bool receives(int rank) const;
    std::size_t block() const; // bytes of `count` elements
    std::size_t send_bytes(int rank, int ranks) const;
    std::size_t receive_bytes(int rank, int ranks) const;
};

// True if all of the buffer is device memory, or host memory of this process, that is mapped now.
bool is_mapped(const void* pointer, std::size_t size);

// Refuses what NCCL's own argument check refuses, and a buffer that is not mapped (rule M2).
Result check_operation(const Communicator& communicator, const Operation& operation);

} // namespace tracehook::rehearsal::nccl
