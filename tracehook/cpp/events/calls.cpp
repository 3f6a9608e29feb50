#include "events/calls.h"

#include "events/ring.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace tracehook::events {

CallRecord& CallSlot::transfer_begins(std::uint32_t what, std::uint64_t count, std::int32_t peer,
                                      bool sends, std::uint32_t place,
                                      std::uint64_t stream) noexcept {
    const std::uint64_t number = transfers_.load(std::memory_order_relaxed);
    CallRecord& made = last_transfers_[number % kTransfers];
    made = {count, stream, next_order(), what, peer, place};
    Peer& found = peers_[static_cast<std::uint32_t>(peer) % kPeers];
    const auto wanted = static_cast<std::uint32_t>(peer) + 1;
    if (found.rank == 0) {
        found.rank = wanted;
    }
    if (found.rank != wanted) {
        transfer_uncounted();
    } else {
        ++(sends ? found.sent : found.received);
    }
    transfers_.store(number + 1, std::memory_order_release);
    return made;
}

void CallSlot::begin(const Owner& owner, std::uint64_t now_ns) noexcept {
    key_ = owner.key;
    comm_id_ = owner.comm_id;
    rank_ = owner.rank;
    size_ = owner.size;
    adopted_ = owner.adopted ? 1 : 0;
    born_ns_ = now_ns;
    moved_ns_.store(now_ns, std::memory_order_relaxed);
    logged_ = 0;
    state_.store(CallSlotState::kLive, std::memory_order_release);
}

void CallSlot::begin(const Birth& birth, std::uint64_t now_ns) noexcept {
    key_ = birth.key;
    comm_id_ = 0;
    rank_ = birth.rank;
    size_ = birth.size;
    adopted_ = 0;
    parent_ = birth.parent;
    child_ = birth.child;
    after_ = order_.load(std::memory_order_relaxed);
    born_ns_ = now_ns;
    moved_ns_.store(now_ns, std::memory_order_relaxed);
    logged_ = 0;
    state_.store(CallSlotState::kBorn, std::memory_order_release);
}

void CallSlot::born() noexcept {
    state_.store(CallSlotState::kFree, std::memory_order_release);
}

void CallSlot::end(bool aborted) noexcept {
    auto expected = CallSlotState::kLive;
    if (aborted) {
        aborted_.store(1, std::memory_order_relaxed);
    }
    state_.compare_exchange_strong(expected, CallSlotState::kEnded, std::memory_order_acq_rel);
}

void CallSlot::let_go() noexcept {
    state_.store(CallSlotState::kGone, std::memory_order_release);
}

void CallSlot::clear() noexcept {
    for (std::atomic<std::uint64_t>* counter :
         {&collectives_, &collectives_returned_, &transfers_, &transfers_returned_, &moved_ns_}) {
        counter->store(0, std::memory_order_relaxed);
    }
    aborted_.store(0, std::memory_order_relaxed);
    crowded_.store(0, std::memory_order_relaxed);
    digest_ = seen_ = 0;
    logged_ = 0;
    peers_ = {};
    last_ = {};
    last_transfers_ = {};
    surroundings_.store(0, std::memory_order_relaxed);
    tally_.clear();
    state_.store(CallSlotState::kFree, std::memory_order_release);
}

template <typename About> CallSlot* CallTable::take_for(const About& about) noexcept {
    for (CallSlot& slot : slots_) {
        auto expected = CallSlotState::kFree;
        if (slot.state_.compare_exchange_strong(expected, CallSlotState::kTaken,
                                                std::memory_order_acq_rel)) {
            slot.begin(about, monotonic_ns());
            return &slot;
        }
    }
    return nullptr;
}

template CallSlot* CallTable::take_for(const CallSlot::Owner&) noexcept;
template CallSlot* CallTable::take_for(const CallSlot::Birth&) noexcept;

void CallTable::look(std::uint64_t now_ns) noexcept {
    for (CallSlot& slot : slots_) {
        if (slot.state_.load(std::memory_order_acquire) != CallSlotState::kLive) {
            continue;
        }
        const std::uint64_t counts = slot.collectives_.load(std::memory_order_relaxed) +
                                     slot.transfers_.load(std::memory_order_relaxed);
        // The log's thread may wake just now, while another thread looks in its place.
        if (std::atomic_ref(slot.seen_).exchange(counts, std::memory_order_relaxed) != counts) {
            slot.moved_ns_.store(now_ns, std::memory_order_relaxed);
        }
    }
}

std::vector<CallSlot*> CallTable::unlogged(bool live) noexcept {
    std::vector<CallSlot*> found;
    for (CallSlot& slot : slots_) {
        const CallSlotState state = slot.state_.load(std::memory_order_acquire);
        const bool lives = state == CallSlotState::kLive || state == CallSlotState::kBorn;
        if (state < CallSlotState::kLive || (lives && !live)) {
            continue;
        }
        if (slot.logged_ == 0) {
            slot.logged_ = 1;
            found.push_back(&slot);
        } else if (state == CallSlotState::kGone) {
            const std::lock_guard guard(past_->mutex);
            append(slot, past_->rows);
            if (past_->rows.size() > kMostPast) {
                fold(past_->rows);
            }
            slot.clear();
        }
    }
    return found;
}

void CallTable::fold(std::vector<Tallied>& rows) {
    // A row for each that NCCL's path may differ by.
    std::map<std::tuple<std::int32_t, std::uint64_t, std::uint64_t>, Tally::Entry> sums;
    const auto newest = rows.end() - kNewestPast;
    for (auto row = rows.begin(); row != newest; ++row) {
        const Tally::Entry& entry = row->entry;
        const auto [found, is_new] =
            sums.try_emplace({row->size, row->surroundings, entry.kind}, entry);
        if (!is_new) {
            Tally::Entry& sum = found->second;
            sum.count += entry.count;
            sum.nbytes += entry.nbytes;
            sum.least = std::min(sum.least, entry.least);
            sum.most = std::max(sum.most, entry.most);
        }
    }
    std::vector<Tallied> kept;
    kept.reserve(sums.size() + kNewestPast);
    for (const auto& [about, entry] : sums) {
        const auto& [size, surroundings, kind] = about;
        kept.push_back({0, 0, -1, size, surroundings, entry});
    }
    kept.insert(kept.end(), newest, rows.end());
    rows = std::move(kept);
}

void CallTable::append(const CallSlot& slot, std::vector<Tallied>& rows) {
    for (const Tally::Entry& entry : slot.tally_.entries()) {
        rows.push_back({slot.key_, slot.comm_id_, slot.rank_, slot.size_,
                        slot.surroundings_.load(std::memory_order_relaxed), entry});
    }
}

std::vector<CallTable::Tallied> CallTable::tallied() const {
    const std::lock_guard guard(past_->mutex);
    std::vector<Tallied> rows = past_->rows;
    for (const CallSlot& slot : slots_) {
        if (slot.state_.load(std::memory_order_acquire) >= CallSlotState::kLive) {
            append(slot, rows);
        }
    }
    return rows;
}

} // namespace tracehook::events
