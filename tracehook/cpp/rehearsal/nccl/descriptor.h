// What a rank tells the others about one collective, and what they compare.
//
// On the thread of a stream, holding nothing.
#pragma once

#include "communicator.h"
#include "operation.h"
#include "peer_memory.h"

#include <string>
#include <vector>

namespace tracehook::rehearsal::nccl {

// Where a buffer starts in the windows of its rank; position 0 is outside.
struct Spot {
    std::uint64_t offset;
    std::int32_t position;
    std::uint8_t symmetric;
    std::uint8_t whole;
};

struct Descriptor {
    Kind kind;
    DataType type;
    int op;
    int peer;
    std::uint64_t count;
    SharedRange range;
    SharedRange holes; // of the memory in `range`
    std::uint8_t readable;
    std::uint8_t send_registered;
    std::uint8_t receive_registered;
    std::uint8_t sends; // this rank has a send buffer; those that are not the root may have none
    std::uint8_t receives;
    std::uint8_t multiplies;
    std::uint8_t symmetric; // this rank runs the symmetric kernel
    std::uint8_t in_effect; // bits of effect.h
    std::byte scalar[8];
    Spot send;
    Spot receive;
};
static_assert(sizeof(Descriptor) <= kPayload);

Descriptor describe(const Communicator& communicator, const Operation& operation,
                    const Publication& published);

// For messages: "ncclReduce of 4 float32, sum, root 0".
std::string described(const Descriptor& descriptor);

// Whether two ranks called the same operation.
bool same(const Descriptor& left, const Descriptor& right);

// Rules L7 and W16. `all` holds one descriptor a rank.
void compare_registrations(const Communicator& communicator, const std::vector<Descriptor>& all);
// False if the rule is broken, which is then reported.
bool compare_placements(const Communicator& communicator, const std::vector<Descriptor>& all);

} // namespace tracehook::rehearsal::nccl
