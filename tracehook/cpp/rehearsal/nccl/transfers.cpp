#include "launch.h"

#include "effect.h"
#include "peer_memory.h"
#include "reduction.h"
#include "rehearsal/cuda/device.h"
#include "waiting.h"

#include <cstring>
#include <memory>

namespace tracehook::rehearsal::nccl {

namespace {

struct Letter {
    std::uint64_t count;
    DataType type;
    std::uint16_t readable;
    std::uint16_t in_effect; // bits of effect.h
    SharedRange range;
    SharedRange holes;
};
static_assert(sizeof(Letter) <= kPayload);

std::string described(std::uint64_t count, DataType type) {
    return std::to_string(count) + " " + type_name(type);
}

class Transfer {
  public:
    Transfer(Communicator& communicator, const Operation& operation)
        : communicator_(communicator), operation_(operation) {}

    bool done() const { return done_; }
    const Operation& operation() const { return operation_; }
    // True if anything could be done without waiting.
    bool advance() { return operation_.kind == Kind::kSend ? advance_send() : advance_receive(); }

  private:
    bool advance_send() {
        Rendezvous& meeting = communicator_.meeting();
        if (published_ == nullptr) {
            if (!meeting.may_send(operation_.peer, operation_.sequence)) {
                return false;
            }
            published_ = std::make_unique<Publication>(operation_.send, operation_.block());
            const Letter letter{operation_.count,     operation_.type,     published_->valid(),
                                operation_.in_effect, published_->range(), published_->holes()};
            meeting.send(operation_.peer, operation_.sequence, &letter, sizeof letter);
            return true;
        }
        bool refused = false;
        done_ = meeting.taken(operation_.peer, operation_.sequence, &refused);
        if (done_ && refused) {
            communicator_.fail(kInvalidUsage, "rank " + std::to_string(operation_.peer) +
                                                  " expected another message");
        }
        return done_;
    }

    bool advance_receive() {
        Rendezvous& meeting = communicator_.meeting();
        if (!meeting.has_arrived(operation_.peer, operation_.sequence)) {
            return false;
        }
        emu_unwritten_forget(operation_.receive, operation_.block());
        Letter letter;
        std::memcpy(&letter, meeting.letter(operation_.peer), sizeof letter);
        const bool wanted = letter.count == operation_.count && letter.type == operation_.type;
        if (wanted) {
            compare_effects(communicator_, operation_, letter.in_effect);
        }
        if (!wanted) {
            report(Rule::kM1, communicator_.subject(),
                   "message %llu from rank %d: it sends %s, this rank receives %s",
                   static_cast<unsigned long long>(operation_.sequence), operation_.peer,
                   described(letter.count, letter.type).c_str(),
                   described(operation_.count, operation_.type).c_str());
            call_witness();
            communicator_.fail(kInvalidUsage, "sender and receiver differ");
        } else if (!letter.readable ||
                   (operation_.block() != 0 &&
                    !PeerMemory(letter.range).read(0, operation_.receive, operation_.block()))) {
            communicator_.fail(kRemoteError, "the send buffer of rank " +
                                                 std::to_string(operation_.peer) + " is gone");
        } else {
            Holes(letter.holes)
                .put(0, static_cast<std::byte*>(operation_.receive), operation_.block());
        }
        meeting.take(operation_.peer, operation_.sequence, !wanted);
        done_ = true;
        return true;
    }

    Communicator& communicator_;
    const Operation& operation_;
    std::unique_ptr<Publication> published_;
    bool done_ = false;
};

std::vector<int> missing(const std::vector<Transfer>& transfers) {
    std::vector<int> found;
    for (const Transfer& transfer : transfers) {
        if (!transfer.done()) {
            found.push_back(transfer.operation().peer);
        }
    }
    return found;
}

// The first that is not done: "ncclSend of 4 float32 (message 3)".
std::string described(const std::vector<Transfer>& transfers) {
    for (const Transfer& transfer : transfers) {
        if (!transfer.done()) {
            const Operation& operation = transfer.operation();
            return std::string(shape(operation.kind).name) + " of " +
                   described(operation.count, operation.type) + " (message " +
                   std::to_string(operation.sequence) + ")";
        }
    }
    return "";
}

} // namespace

void run_transfers(Communicator& communicator, const std::vector<Operation>& operations) {
    std::vector<Transfer> transfers;
    for (const Operation& operation : operations) {
        if (operation.between_two()) {
            transfers.emplace_back(communicator, operation);
        }
    }
    std::size_t open = transfers.size();
    const WaitScope waiting(
        communicator, [&] { return described(transfers); }, [&] { return missing(transfers); });
    while (open != 0) {
        const auto progress = [&] {
            bool moved = false;
            for (Transfer& transfer : transfers) {
                if (!transfer.done() && transfer.advance()) {
                    moved = true;
                    open -= transfer.done() ? 1 : 0;
                }
            }
            return moved;
        };
        if (!communicator.meeting().wait(progress)) {
            return;
        }
    }
}

} // namespace tracehook::rehearsal::nccl
