#include "descriptor.h"

#include "calls.h"
#include "reduction.h"
#include "rehearsal/cuda/device.h"
#include "settings.h"
#include "symmetric.h"

#include <algorithm>
#include <cstring>

namespace tracehook::rehearsal::nccl {

namespace {

// Below, NCCL copies what it sends, and looks at no registration.
constexpr std::size_t kLeastUsed = std::size_t{64} << 10;

// Whether NCCL makes messages of it, whatever the algorithm.
bool is_messages(Kind kind) {
    return kind != Kind::kAllGather && !shape(kind).reduces;
}

Spot spot(const Placement& placement) {
    return {placement.offset, placement.position, placement.symmetric, placement.whole};
}

bool is_window(const Spot& spot) {
    return spot.position != 0 && spot.symmetric != 0;
}

bool same_spot(const Spot& left, const Spot& right) {
    return is_window(left) == is_window(right) &&
           (!is_window(left) || (left.position == right.position && left.offset == right.offset));
}

std::string described(const Spot& spot) {
    return is_window(spot)
               ? "window " + std::to_string(spot.position) + " + " + std::to_string(spot.offset)
               : "no window";
}

// Which buffers NCCL's own checker compares.
bool compares_send(Kind kind) {
    return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kAllToAll ||
           kind == Kind::kGather;
}

bool compares_receive(Kind kind) {
    return kind == Kind::kAllReduce || kind == Kind::kAllGather || kind == Kind::kAllToAll ||
           kind == Kind::kScatter;
}

bool report_spots(const Communicator& communicator, const Descriptor& mine, const char* which,
                  const Spot& here, int rank, const Spot& there) {
    if (same_spot(here, there)) {
        return false;
    }
    report(Rule::kW16, communicator.subject(), "%s, %s buffer: %s; on rank %d %s",
           described(mine).c_str(), which, described(here).c_str(), rank, described(there).c_str());
    return true;
}

} // namespace

Descriptor describe(const Communicator& communicator, const Operation& operation,
                    const Publication& published) {
    Descriptor d{};
    d.kind = operation.kind;
    d.type = operation.type;
    d.op = operation.op;
    d.peer = operation.peer;
    d.count = operation.count;
    d.range = published.range();
    d.holes = published.holes();
    d.readable = published.valid();
    d.send_registered = operation.send_registered;
    d.receive_registered = operation.receive_registered;
    d.sends = operation.send_bytes(communicator.rank(), communicator.ranks()) != 0;
    d.receives = operation.receive_bytes(communicator.rank(), communicator.ranks()) != 0;
    d.multiplies = operation.op >= kNumOps;
    d.symmetric = takes_symmetric_path(operation, communicator);
    d.send = spot(operation.send_placement);
    d.receive = spot(operation.receive_placement);
    d.in_effect = operation.in_effect;
    const PreMultiply& multiply = operation.multiply;
    std::memcpy(d.scalar, multiply.scalar, sizeof d.scalar);
    if (multiply.device_scalar != nullptr) {
        emu_unwritten_fill(multiply.device_scalar, element_size(operation.type));
        std::memcpy(d.scalar, multiply.device_scalar, element_size(operation.type));
    }
    return d;
}

std::string described(const Descriptor& d) {
    const Shape& kind = shape(d.kind);
    std::string text =
        std::string(kind.name) + " of " + std::to_string(d.count) + " " + type_name(d.type);
    text += kind.reduces ? std::string(", ") + operator_name(d.op) : "";
    text += kind.rooted ? ", root " + std::to_string(d.peer) : "";
    return text;
}

bool same(const Descriptor& left, const Descriptor& right) {
    const auto op = [](const Descriptor& d) { return std::min<int>(d.op, kNumOps); };
    return left.kind == right.kind && left.type == right.type && left.count == right.count &&
           (!shape(left.kind).reduces || op(left) == op(right)) &&
           (!shape(left.kind).rooted || left.peer == right.peer);
}

void compare_registrations(const Communicator& communicator, const std::vector<Descriptor>& all) {
    const Descriptor& mine = all[communicator.rank()];
    if (is_messages(mine.kind) && (mine.count * element_size(mine.type) < kLeastUsed ||
                                   communicator.meeting().is_one_machine())) {
        return; // nothing is used, or rule L8 knows what is
    }
    for (int rank = 0; rank < communicator.ranks(); ++rank) {
        const Descriptor& other = all[rank];
        // A rank that only receives has nothing to compare with what the root sends.
        const bool same_send =
            !mine.sends || !other.sends || other.send_registered == mine.send_registered;
        const bool same_receive = !mine.receives || !other.receives ||
                                  other.receive_registered == mine.receive_registered;
        if (same_send && same_receive) {
            continue;
        }
        count_event("uneven_operations");
        if (settings().strict_uniformity) {
            report(Rule::kL7, communicator.subject(),
                   "%s: registered here send %d, receive %d; on rank %d send %d, receive %d",
                   described(mine).c_str(), mine.send_registered, mine.receive_registered, rank,
                   other.send_registered, other.receive_registered);
        }
        return;
    }
}

bool compare_placements(const Communicator& communicator, const std::vector<Descriptor>& all) {
    const Descriptor& mine = all[communicator.rank()];
    for (int rank = 0; rank < communicator.ranks(); ++rank) {
        const Descriptor& other = all[rank];
        const bool said =
            (compares_send(mine.kind) &&
             report_spots(communicator, mine, "send", mine.send, rank, other.send)) ||
            (compares_receive(mine.kind) &&
             report_spots(communicator, mine, "receive", mine.receive, rank, other.receive));
        if (said) {
            return false;
        }
    }
    return true;
}

} // namespace tracehook::rehearsal::nccl
