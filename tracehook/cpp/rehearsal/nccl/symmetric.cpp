#include "symmetric.h"

#include "reduction.h"
#include "rehearsal/cuda/device.h"
#include "settings.h"

#include <algorithm>
#include <cstring>

namespace tracehook::rehearsal::nccl {

namespace {

bool in_window(const Placement& placement) {
    return placement.position != 0 && placement.symmetric;
}

bool has_kernel(const Operation& operation) {
    if (operation.kind == Kind::kAllGather) {
        return true;
    }
    const bool small_float = operation.type == kFloat16 || operation.type == kBfloat16 ||
                             operation.type == kFloat32 || operation.type == kFloat8e4m3 ||
                             operation.type == kFloat8e5m2;
    return (operation.kind == Kind::kAllReduce || operation.kind == Kind::kReduceScatter) &&
           (operation.op == kSum || operation.op == kAvg) && small_float;
}

// The memory of one rank at one position, which may lie in several pieces.
class PieceReader {
  public:
    explicit PieceReader(const Pieces& pieces) : pieces_(pieces) {
        for (const SharedRange& piece : pieces) {
            memory_.emplace_back(piece);
        }
    }

    bool read(std::size_t offset, std::byte* out, std::size_t size) const {
        for (std::size_t index = 0; index < pieces_.size() && size != 0; ++index) {
            const std::size_t bytes = pieces_[index].bytes;
            if (offset >= bytes) {
                offset -= bytes;
                continue;
            }
            const std::size_t part = std::min(size, bytes - offset);
            if (!memory_[index].read(offset, out, part)) {
                return false;
            }
            offset = 0;
            out += part;
            size -= part;
        }
        return size == 0;
    }

  private:
    const Pieces& pieces_;
    std::vector<PeerMemory> memory_;
};

} // namespace

bool takes_symmetric_path(const Operation& operation, const Communicator& communicator) {
    if (communicator.ranks() < 2 || operation.count == 0 || !has_kernel(operation) ||
        !communicator.meeting().is_one_machine()) {
        return false;
    }
    const bool relaxed = has(Trait::kOneBufferIsEnough);
    const bool needs_send = !relaxed || operation.kind != Kind::kAllGather;
    const bool needs_receive = !relaxed || operation.kind != Kind::kReduceScatter;
    return (!needs_send || in_window(operation.send_placement)) &&
           (!needs_receive || in_window(operation.receive_placement));
}

std::optional<SymmetricOperation::Fault> SymmetricOperation::beyond(const Spot& spot,
                                                                    std::size_t size) const {
    const std::string window = "window " + std::to_string(spot.position);
    if (spot.whole == 0) {
        return Fault{Rule::kW7, "only the first of the handles under " + window + " is mapped"};
    }
    const auto memory = communicator_.windows().memory(spot.position);
    for (std::size_t rank = 0; rank < memory->ranks.size(); ++rank) {
        const std::size_t bytes = bytes_of(memory->ranks[rank]);
        if (spot.offset + size > bytes) {
            return Fault{Rule::kW2, window + " has " + std::to_string(bytes) + " bytes on rank " +
                                        std::to_string(rank) + ", not " +
                                        std::to_string(spot.offset + size)};
        }
    }
    return std::nullopt;
}

std::optional<SymmetricOperation::Fault> SymmetricOperation::illegal_access() const {
    const int ranks = communicator_.ranks();
    for (const Descriptor& rank : all_) {
        std::optional<Fault> fault;
        if (operation_.kind != Kind::kAllGather) {
            fault = beyond(rank.send, operation_.send_bytes(communicator_.rank(), ranks));
        }
        if (!fault && operation_.kind != Kind::kReduceScatter) {
            fault = beyond(rank.receive, operation_.receive_bytes(communicator_.rank(), ranks));
        }
        if (fault) {
            return fault;
        }
    }
    return std::nullopt;
}

// The addresses of this rank's memory are contiguous, whatever its pieces.
std::byte* SymmetricOperation::own(const Spot& spot, std::size_t offset) const {
    const auto memory = communicator_.windows().memory(spot.position);
    return reinterpret_cast<std::byte*>(memory->extent.begin + spot.offset + offset);
}

bool SymmetricOperation::fold(const Spot& spot, std::size_t offset, std::size_t count,
                              std::byte* at) {
    const auto memory = communicator_.windows().memory(spot.position);
    std::vector<PieceReader> readers;
    for (const Pieces& pieces : memory->ranks) {
        readers.emplace_back(pieces);
    }
    std::vector<Holes> holes;
    for (const Descriptor& rank : all_) {
        holes.emplace_back(rank.holes);
    }
    const std::size_t size = count * element_size(operation_.type);
    Store store{at, size, std::unique_ptr<std::byte[]>(new std::byte[size])};
    const auto from = [&](std::size_t rank, std::size_t into, std::byte* out, std::size_t bytes) {
        const bool done = readers[rank].read(spot.offset + offset + into, out, bytes);
        holes[rank].put(offset + into, out, bytes);
        return done;
    };
    if (!fold_ranks(all_, count, from, store.bytes.get())) {
        return false;
    }
    stores_.push_back(std::move(store));
    return true;
}

bool SymmetricOperation::read() {
    const auto ranks = static_cast<std::size_t>(communicator_.ranks());
    const std::size_t block = operation_.block();
    const auto me = static_cast<std::size_t>(communicator_.rank());
    if (operation_.kind == Kind::kReduceScatter) {
        return fold(all_[me].send, me * block, operation_.count,
                    static_cast<std::byte*>(operation_.receive));
    }
    const std::size_t element = element_size(operation_.type);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        const Descriptor& writer = all_[rank];
        if (operation_.kind == Kind::kAllReduce) {
            // Each rank reduces its share and writes it into the memory of all.
            const std::size_t begin = operation_.count * rank / ranks;
            const std::size_t end = operation_.count * (rank + 1) / ranks;
            if (begin != end && !fold(writer.send, begin * element, end - begin,
                                      own(writer.receive, begin * element))) {
                return false;
            }
            continue;
        }
        Store store{own(writer.receive, rank * block), block,
                    std::unique_ptr<std::byte[]>(new std::byte[block])};
        if (!PeerMemory(writer.range).read(0, store.bytes.get(), block)) {
            return false;
        }
        Holes(writer.holes).put(0, store.bytes.get(), block);
        stores_.push_back(std::move(store));
    }
    return true;
}

bool SymmetricOperation::write() const {
    for (const Store& store : stores_) {
        if (!is_mapped(store.at, store.size)) {
            return false;
        }
        emu_unwritten_forget(store.at, store.size);
        std::memcpy(store.at, store.bytes.get(), store.size);
    }
    return true;
}

} // namespace tracehook::rehearsal::nccl
