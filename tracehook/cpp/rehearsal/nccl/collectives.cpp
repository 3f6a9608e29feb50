#include "launch.h"

#include "descriptor.h"
#include "effect.h"
#include "peer_memory.h"
#include "reduction.h"
#include "rehearsal/cuda/device.h"
#include "settings.h"
#include "symmetric.h"
#include "waiting.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace tracehook::rehearsal::nccl {

namespace {

// One collective from the point of view of one rank.
class Collective {
  public:
    Collective(Communicator& communicator, const Operation& operation)
        : communicator_(communicator), operation_(operation),
          published_(operation.send,
                     operation.send_bytes(communicator.rank(), communicator.ranks())) {}

    void run() {
        Rendezvous& meeting = communicator_.meeting();
        const Descriptor mine = describe(communicator_, operation_, published_);
        const WaitScope waiting(
            communicator_,
            [&] {
                return described(mine) + " (collective " + std::to_string(operation_.sequence) +
                       ")";
            },
            [&] { return missing(); });
        meeting.post(Lane::kStream, operation_.sequence, &mine, sizeof mine);
        if (!meeting.await_posted(Lane::kStream, operation_.sequence)) {
            return;
        }
        all_ = meeting.payloads<Descriptor>(Lane::kStream);
        compare_registrations(communicator_, all_);
        const bool agreed = agree();
        if (agreed && !some_symmetric()) {
            compare_effects(communicator_, operation_, all_);
        }
        if (agreed && !carry_out()) {
            // A rank was killed meanwhile: on hardware the others would wait for it.
            meeting.wait([] { return false; });
            return;
        }
        // Also after a disagreement: nobody may post again before all have read.
        meeting.pass(Lane::kStream, operation_.sequence);
        if (!meeting.await_passed(Lane::kStream, operation_.sequence)) {
            return;
        }
        if (symmetric_ != nullptr && !symmetric_->write()) {
            fail(kUnhandledCudaError,
                 "an illegal memory access was encountered: the window's memory is gone");
        }
        if (agreed && staged_ != nullptr) {
            std::memcpy(operation_.receive, staged_.get(), receive_bytes());
        }
    }

  private:
    // Those that have not come; or, when all have, those that are not done with it.
    std::vector<int> missing() const {
        const Rendezvous& meeting = communicator_.meeting();
        const auto late = meeting.behind(Lane::kStream, Mark::kPosted, operation_.sequence);
        return !late.empty() ? late
                             : meeting.behind(Lane::kStream, Mark::kPassed, operation_.sequence);
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
                call_witness();
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

    static bool is_symmetric(const Descriptor& rank) { return rank.symmetric != 0; }
    bool all_symmetric() const { return std::ranges::all_of(all_, is_symmetric); }
    bool some_symmetric() const { return std::ranges::any_of(all_, is_symmetric); }

    // Different kernels wait for one another: for ever on hardware, here until somebody aborts or
    // the time is up. False if stopped.
    bool hang() {
        const auto deadline = std::chrono::steady_clock::now() + settings().window_timeout;
        if (!communicator_.meeting().wait(
                [&] { return std::chrono::steady_clock::now() >= deadline; })) {
            return false;
        }
        fail(kSystemError, "it hangs: symmetric on some ranks only");
        return true;
    }

    void fail(Result result, const std::string& reason) {
        const std::string text = described(mine()) + ": " + reason;
        std::fprintf(stderr, "rehearsal: rank %d of communicator %p: %s\n", communicator_.rank(),
                     communicator_.handle(), text.c_str());
        communicator_.fail(result, text);
    }

    // False if the communicator was stopped, or waits for a rank that is gone.
    bool carry_out() {
        const bool placed = compare_placements(communicator_, all_);
        if (!some_symmetric()) {
            return compute();
        }
        if (!all_symmetric()) {
            if (placed) {
                // The buffer that makes the difference is one that the rule does not compare.
                report(Rule::kW16, communicator_.subject(), "%s is symmetric on some ranks only",
                       described(mine()).c_str());
            }
            return hang();
        }
        symmetric_ = std::make_unique<SymmetricOperation>(communicator_, operation_, all_);
        if (const auto fault = symmetric_->illegal_access()) {
            const std::string text = "an illegal memory access was encountered: " + fault->reason;
            report(fault->rule, communicator_.subject(), "%s: %s", described(mine()).c_str(),
                   text.c_str());
            fail(kUnhandledCudaError, text);
            symmetric_ = nullptr;
            return true;
        }
        return symmetric_->read();
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
        emu_unwritten_forget(operation_.receive, receive_bytes());
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
            Holes(all_[rank].holes).put(source_offset(), out, operation_.block());
            out += operation_.block();
        }
        return true;
    }

    bool reduce(std::byte* out) const {
        std::vector<PeerMemory> peers;
        std::vector<Holes> holes;
        for (const Descriptor& descriptor : all_) {
            peers.emplace_back(descriptor.range);
            holes.emplace_back(descriptor.holes);
        }
        const auto read = [&](std::size_t rank, std::size_t offset, std::byte* to,
                              std::size_t size) {
            const bool done = peers[rank].read(source_offset() + offset, to, size);
            holes[rank].put(source_offset() + offset, to, size);
            return done;
        };
        return fold_ranks(all_, operation_.count, read, out);
    }

    Communicator& communicator_;
    const Operation& operation_;
    Publication published_;
    std::vector<Descriptor> all_;
    std::unique_ptr<std::byte[]> staged_;
    std::unique_ptr<SymmetricOperation> symmetric_;
};

} // namespace

void run_collective(Communicator& communicator, const Operation& operation) {
    Collective(communicator, operation).run();
}

} // namespace tracehook::rehearsal::nccl
