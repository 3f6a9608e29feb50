// The registrar's part for memory that a library takes away and gives back under a segment. Such a
// segment is never registered: NCCL would keep the memory, or go on to use it, and a captured graph
// would replay with it. Only what was registered before tracehook saw the library has to be undone.
#include "registrar/registrar.h"

#include <algorithm>
#include <thread>

namespace tracehook::registrar {

using namespace events;

void Registrar::memory_mapped(std::uintptr_t address, std::size_t size) noexcept {
    if (abandoned()) {
        return;
    }
    has_pausable_.store(true, std::memory_order_relaxed);
    const std::lock_guard guard(mutex_);
    for (const Segment& before : pausable_.mapped(address, size)) {
        const Segment segment = ledger_.allocated(
            before.device, before.address, before.size,
            nature_of(before.address, before.size, MemoryKind::kPausable, before.pool));
        log_born<row::SegmentMap>(segment);
    }
}

bool Registrar::memory_unmapped(std::uintptr_t address, std::size_t size) noexcept {
    if (abandoned()) {
        return false;
    }
    std::unique_lock lock(mutex_);
    const std::vector<Segment> segments = ledger_.take_in(address, size);
    const bool had_memory = !segments.empty() || pausable_.has_part_of(address, size);
    pausable_.unmapped(address, size, segments);
    for (const Segment& segment : segments) {
        remove_segment(segment, EventKind::kSegmentUnmap, lock);
    }
    return had_memory;
}

std::shared_ptr<LiveGraphs> Registrar::captured(const Communicator& communicator,
                                                std::uintptr_t address) noexcept {
    return locked([&]() -> std::shared_ptr<LiveGraphs> {
        const auto segment = ledger_.at(address);
        if (!segment || segment->memory != MemoryKind::kPausable) {
            return nullptr;
        }
        auto& graphs = captured_[{segment->id, communicator.identity().id}];
        if (graphs == nullptr) {
            graphs = std::make_shared<LiveGraphs>();
        }
        return graphs;
    });
}

void Registrar::end_captured(const Segment& segment, EventKind kind,
                             std::unique_lock<std::mutex>& lock) {
    constexpr auto kPoll = std::chrono::milliseconds(1);
    std::vector<std::pair<std::uint32_t, std::shared_ptr<LiveGraphs>>> held;
    const auto begin = captured_.lower_bound({segment.id, 0});
    const auto end = captured_.lower_bound({segment.id + 1, 0});
    for (auto next = begin; next != end; ++next) {
        held.emplace_back(next->first.second, next->second);
    }
    captured_.erase(begin, end);
    if (held.empty() || kind != EventKind::kSegmentUnmap) {
        return;
    }
    // CUDA tells the end of a graph from a thread of its own, some time after the program's call.
    lock.unlock();
    const Clock::time_point until = Clock::now() + patience_.end_for_graphs;
    const auto lives = [](const auto& each) { return each.second->count() != 0; };
    while (std::any_of(held.begin(), held.end(), lives) && Clock::now() < until) {
        std::this_thread::sleep_for(kPoll);
    }
    std::erase_if(held, [&](const auto& each) { return !lives(each); });
    lock.lock();
    for (const auto& [pointer, communicator] : by_pointer_) {
        for (const auto& [of, graphs] : held) {
            if (communicator->identity().id == of) {
                communicator->log_captured(segment);
            }
        }
    }
}

std::vector<Segment> Registrar::segments_asleep() const {
    return locked([&] { return pausable_.asleep(); });
}

} // namespace tracehook::registrar
