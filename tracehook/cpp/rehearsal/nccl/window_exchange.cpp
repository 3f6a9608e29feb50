#include "window_exchange.h"

#include "attendance.h"
#include "calls.h"
#include "settings.h"

#include <algorithm>
#include <string>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::size_t kBigUnit = 4UL << 30;

struct Message {
    std::uint64_t memory_bytes;
    std::uint64_t window_bytes;
    std::uint64_t history;
    std::int32_t flags;
    std::int32_t known;
    SharedRange pieces; // the list of them
};
static_assert(sizeof(Message) <= kPayload);

class Exchange {
  public:
    Exchange(Communicator& communicator, const Offer& offer)
        : communicator_(communicator), meeting_(communicator.meeting()), offer_(offer),
          number_(communicator.windows().next_exchange()),
          attendance_(communicator, Lane::kWindow, number_, Rule::kW1,
                      "ncclCommWindowRegister, exchange " + std::to_string(number_)),
          list_(offer.pieces.data(), offer.pieces.size() * sizeof(SharedRange)) {}

    Result run(std::shared_ptr<const MappedMemory>& mapped) {
        const Message mine{memory_bytes(), offer_.window_bytes, communicator_.windows().history(),
                           offer_.flags,   offer_.known,        list_.range()};
        meeting_.post(Lane::kWindow, number_, &mine, sizeof mine);
        if (const Result result = attendance_.await(Mark::kPosted, "come"); result != kSuccess) {
            return result;
        }
        all_ = meeting_.payloads<Message>(Lane::kWindow);
        // Also after a failure: the others wait, and see the same.
        const Result mapping = map(mapped);
        meeting_.pass(Lane::kWindow, number_);
        const Result passing = attendance_.await(Mark::kPassed, "stay");
        return mapping != kSuccess ? mapping : passing;
    }

  private:
    std::size_t memory_bytes() const { return offer_.memory.end - offer_.memory.begin; }

    const std::string& name() const { return attendance_.name(); }

    // The first rank in which `differs` sees another value than this rank's; -1 if there is none.
    template <typename Value> int other_rank(Value Message::* value) const {
        for (int rank = 0; rank < communicator_.ranks(); ++rank) {
            if (all_[rank].*value != all_[communicator_.rank()].*value) {
                return rank;
            }
        }
        return -1;
    }

    void compare() const {
        const Message& mine = all_[communicator_.rank()];
        if (const int rank = other_rank(&Message::flags); rank >= 0) {
            report(Rule::kW3, communicator_.subject(), "%s: flags %d, on rank %d %d",
                   name().c_str(), mine.flags, rank, all_[rank].flags);
        }
        if (const int rank = other_rank(&Message::history); rank >= 0) {
            report(Rule::kW4, communicator_.subject(), "%s: rank %d had another order",
                   name().c_str(), rank);
        }
        int rank = other_rank(&Message::window_bytes);
        rank = rank >= 0 ? rank : other_rank(&Message::memory_bytes);
        if (rank >= 0 && has(Trait::kSizesMayDiffer)) {
            count_event("uneven_windows");
        } else if (rank >= 0) {
            report(Rule::kW2, communicator_.subject(),
                   "%s: %zu bytes in memory of %zu, on rank %d %zu in %zu; or it is another window",
                   name().c_str(), static_cast<std::size_t>(mine.window_bytes),
                   static_cast<std::size_t>(mine.memory_bytes), rank,
                   static_cast<std::size_t>(all_[rank].window_bytes),
                   static_cast<std::size_t>(all_[rank].memory_bytes));
        }
    }

    bool read_pieces(MappedMemory& memory) const {
        for (const Message& message : all_) {
            Pieces pieces(message.pieces.bytes / sizeof(SharedRange));
            if (!PeerMemory(message.pieces).read(0, pieces.data(), message.pieces.bytes)) {
                return false;
            }
            memory.ranks.push_back(std::move(pieces));
        }
        return true;
    }

    Result map(std::shared_ptr<const MappedMemory>& mapped) {
        compare();
        if (!has(Trait::kSizesMayDiffer) && other_rank(&Message::memory_bytes) >= 0) {
            return failed(kUnhandledCudaError, name() + ": operation not supported");
        }
        if (offer_.known != 0 && other_rank(&Message::known) < 0) {
            mapped = communicator_.windows().memory(offer_.known);
            return kSuccess;
        }
        std::size_t largest = 0;
        for (const Message& message : all_) {
            largest = std::max<std::size_t>(largest, message.memory_bytes);
        }
        const std::size_t space = (emu_device_capacity() + kBigUnit - 1) / kBigUnit * kBigUnit;
        if (communicator_.windows().mapped_bytes() + largest > space) {
            report(Rule::kW10, communicator_.subject(), "%s: %zu bytes, %zu of %zu are taken",
                   name().c_str(), largest, communicator_.windows().mapped_bytes(), space);
            return failed(kSystemError, name() + ": no suitable space");
        }
        auto memory = std::make_shared<MappedMemory>();
        memory->position = static_cast<std::int32_t>(number_);
        memory->extent = offer_.memory;
        memory->whole = offer_.whole;
        if (!read_pieces(*memory)) {
            return failed(kRemoteError, name() + ": a rank is gone");
        }
        mapped = memory;
        // Before the others go on: they may use it at once.
        communicator_.windows().keep(mapped);
        return kSuccess;
    }

    Communicator& communicator_;
    Rendezvous& meeting_;
    const Offer& offer_;
    const std::uint64_t number_;
    Attendance attendance_;
    const Publication list_;
    std::vector<Message> all_;
};

} // namespace

Result exchange(Communicator& communicator, const Offer& offer,
                std::shared_ptr<const MappedMemory>& mapped) {
    return Exchange(communicator, offer).run(mapped);
}

} // namespace tracehook::rehearsal::nccl
