#include "collectives.h"

#include "calls.h"
#include "peer_memory.h"
#include "reduction.h"
#include "settings.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace tracehook::emulator::nccl {

namespace {

// What a rank tells the others about one operation.
struct Descriptor {
    Kind kind;
    DataType type;
    int op;
    int peer;
    std::uint64_t count;
    SharedRange range;
    std::uint8_t readable;
    std::uint8_t send_registered;
    std::uint8_t receive_registered;
    std::uint8_t multiplies;
    std::byte scalar[8];
};
static_assert(sizeof(Descriptor) <= kPayload);

constexpr std::size_t kChunk = 1U << 16; // elements that are reduced at a time

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

// One collective from the point of view of one rank.
class Collective {
  public:
    Collective(Communicator& communicator, const Operation& operation)
        : communicator_(communicator), operation_(operation),
          published_(operation.send,
                     operation.send_bytes(communicator.rank(), communicator.ranks())) {}

    void run() {
        Rendezvous& meeting = communicator_.meeting();
        const Descriptor mine = describe();
        meeting.post(Lane::kStream, operation_.sequence, &mine, sizeof mine);
        if (!meeting.await_posted(Lane::kStream, operation_.sequence)) {
            return;
        }
        collect();
        compare_registrations();
        const bool agreed = agree();
        if (agreed && !compute()) {
            // A rank was killed meanwhile: on hardware the others would wait for it.
            meeting.wait([] { return false; });
            return;
        }
        // Also after a disagreement: nobody may post again before all have read.
        meeting.pass(Lane::kStream, operation_.sequence);
        if (!meeting.await_passed(Lane::kStream, operation_.sequence)) {
            return;
        }
        if (agreed && staged_ != nullptr) {
            std::memcpy(operation_.receive, staged_.get(), receive_bytes());
        }
    }

  private:
    Descriptor describe() const {
        Descriptor d{};
        d.kind = operation_.kind;
        d.type = operation_.type;
        d.op = operation_.op;
        d.peer = operation_.peer;
        d.count = operation_.count;
        d.range = published_.range();
        d.readable = published_.valid();
        d.send_registered = operation_.send_registered;
        d.receive_registered = operation_.receive_registered;
        d.multiplies = operation_.op >= kNumOps;
        const PreMultiply& multiply = operation_.multiply;
        std::memcpy(d.scalar, multiply.scalar, sizeof d.scalar);
        if (multiply.device_scalar != nullptr) {
            std::memcpy(d.scalar, multiply.device_scalar, element_size(operation_.type));
        }
        return d;
    }

    void collect() {
        for (int rank = 0; rank < communicator_.ranks(); ++rank) {
            Descriptor descriptor;
            std::memcpy(&descriptor, communicator_.meeting().payload(Lane::kStream, rank),
                        sizeof descriptor);
            all_.push_back(descriptor);
        }
    }

    const Descriptor& mine() const { return all_[communicator_.rank()]; }

    // Rule M1. All ranks see the same descriptors, so either all carry the operation out or none.
    bool agree() {
        for (int rank = 0; rank < communicator_.ranks(); ++rank) {
            const Descriptor& other = all_[rank];
            if (!same(mine(), other)) {
                report(Rule::kM1, communicator_.subject(),
                       "operation %llu: this rank calls %s, rank %d calls %s",
                       static_cast<unsigned long long>(operation_.sequence),
                       described(mine()).c_str(), rank, described(other).c_str());
                communicator_.fail(kInvalidUsage, "the ranks called different operations");
                return false;
            }
            if (!other.readable) {
                communicator_.fail(kRemoteError,
                                   "the send buffer of rank " + std::to_string(rank) + " is gone");
                return false;
            }
        }
        return true;
    }

    // Rule L7.
    void compare_registrations() {
        for (int rank = 0; rank < communicator_.ranks(); ++rank) {
            const Descriptor& other = all_[rank];
            if (other.send_registered == mine().send_registered &&
                other.receive_registered == mine().receive_registered) {
                continue;
            }
            count_event("uneven_operations");
            if (settings().strict_uniformity) {
                report(Rule::kL7, communicator_.subject(),
                       "%s: registered here send %d, receive %d; on rank %d send %d, receive %d",
                       described(mine()).c_str(), mine().send_registered, mine().receive_registered,
                       rank, other.send_registered, other.receive_registered);
            }
            return;
        }
    }

    std::size_t receive_bytes() const {
        return operation_.receive_bytes(communicator_.rank(), communicator_.ranks());
    }

    // Others may still be reading the send buffer: what overlaps it is written only after all have
    // passed.
    std::byte* destination() {
        const auto send = reinterpret_cast<std::uintptr_t>(operation_.send);
        const auto receive = reinterpret_cast<std::uintptr_t>(operation_.receive);
        const bool overlaps = published_.range().bytes != 0 && send < receive + receive_bytes() &&
                              receive < send + published_.range().bytes;
        if (!overlaps) {
            return static_cast<std::byte*>(operation_.receive);
        }
        staged_ = std::unique_ptr<std::byte[]>(new std::byte[receive_bytes()]);
        return staged_.get();
    }

    bool compute() {
        if (!operation_.receives(communicator_.rank()) || operation_.count == 0) {
            return true;
        }
        std::byte* out = destination();
        return shape(operation_.kind).reduces ? reduce(out) : gather(out);
    }

    std::size_t source_offset() const {
        const auto rank = static_cast<std::size_t>(communicator_.rank());
        return shape(operation_.kind).send_per_rank ? rank * operation_.block() : 0;
    }

    bool gather(std::byte* out) const {
        for (int rank = 0; rank < communicator_.ranks(); ++rank) {
            if (!operation_.sends(rank)) {
                continue;
            }
            if (!PeerMemory(all_[rank].range).read(source_offset(), out, operation_.block())) {
                return false;
            }
            out += operation_.block();
        }
        return true;
    }

    bool reduce(std::byte* out) const {
        const Reduction reduction(operation_.type, operation_.op, communicator_.ranks());
        std::vector<PeerMemory> peers;
        for (const Descriptor& descriptor : all_) {
            peers.emplace_back(descriptor.range);
        }
        const std::size_t size = element_size(operation_.type);
        const std::size_t chunk = std::min<std::size_t>(kChunk, operation_.count);
        const std::unique_ptr<std::byte[]> elements(new std::byte[chunk * size]);
        const std::unique_ptr<std::byte[]> wide(new std::byte[chunk * Reduction::kWide]);
        for (std::size_t done = 0; done < operation_.count; done += chunk) {
            const std::size_t count = std::min(chunk, operation_.count - done);
            for (std::size_t rank = 0; rank < peers.size(); ++rank) {
                if (!peers[rank].read(source_offset() + done * size, elements.get(),
                                      count * size)) {
                    return false;
                }
                const void* scalar = all_[rank].multiplies ? all_[rank].scalar : nullptr;
                reduction.fold(wide.get(), elements.get(), count, rank == 0, scalar);
            }
            reduction.store(out + done * size, wide.get(), count);
        }
        return true;
    }

    Communicator& communicator_;
    const Operation& operation_;
    Publication published_;
    std::vector<Descriptor> all_;
    std::unique_ptr<std::byte[]> staged_;
};

} // namespace

void run_collective(Communicator& communicator, const Operation& operation) {
    Collective(communicator, operation).run();
}

} // namespace tracehook::emulator::nccl
