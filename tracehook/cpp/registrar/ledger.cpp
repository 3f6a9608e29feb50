#include "registrar/ledger.h"

namespace tracehook::registrar {

const Segment& Ledger::insert(int device, std::uintptr_t address, std::size_t size,
                              const Nature& nature) {
    std::uint32_t slot = next_slot_;
    if (free_slots_.empty()) {
        ++next_slot_;
    } else {
        slot = free_slots_.back();
        free_slots_.pop_back();
    }
    Segment& segment = devices_[device][address];
    segment = Segment{next_id_++, slot,          device,      address,
                      size,       nature.memory, nature.pool, nature.left_out};
    bytes_ += size;
    ++version_;
    return segment;
}

void Ledger::removed(const Segment& segment) noexcept {
    bytes_ -= segment.size;
    ++version_;
}

void Ledger::release_slot(const Segment& segment) {
    free_slots_.push_back(segment.slot);
}

std::vector<Segment> Ledger::take_overlapping(ByAddress& live, std::uintptr_t begin,
                                              std::uintptr_t end) {
    std::vector<Segment> taken;
    auto next = live.upper_bound(begin);
    if (next != live.begin() && std::prev(next)->second.end() > begin) {
        --next;
    }
    while (next != live.end() && next->first < end) {
        taken.push_back(next->second);
        removed(next->second);
        next = live.erase(next);
    }
    return taken;
}

std::vector<Segment> Ledger::take_stale(int device, std::uintptr_t address, std::size_t size) {
    return take_overlapping(devices_[device], address, address + size);
}

std::vector<Segment> Ledger::take_in(std::uintptr_t address, std::size_t size) {
    std::vector<Segment> taken;
    for (auto& [device, live] : devices_) {
        const std::vector<Segment> there = take_overlapping(live, address, address + size);
        taken.insert(taken.end(), there.begin(), there.end());
    }
    return taken;
}

Segment Ledger::allocated(int device, std::uintptr_t address, std::size_t size,
                          const Nature& nature) {
    if (adopting_) {
        tombstones_.erase({device, address});
    }
    return insert(device, address, size, nature);
}

std::optional<Segment> Ledger::freed(int device, std::uintptr_t address) {
    if (adopting_) {
        tombstones_.insert({device, address});
    }
    ByAddress& live = devices_[device];
    const auto found = live.find(address);
    if (found == live.end()) {
        return std::nullopt;
    }
    const Segment segment = found->second;
    live.erase(found);
    removed(segment);
    return segment;
}

void Ledger::begin_adoption() {
    adopting_ = true;
}

std::optional<Segment> Ledger::adopt(int device, std::uintptr_t address, std::size_t size,
                                     const Nature& nature) {
    const ByAddress& live = devices_[device];
    const auto next = live.upper_bound(address);
    const bool starts_inside = next != live.begin() && std::prev(next)->second.end() > address;
    const bool reaches_next = next != live.end() && next->first < address + size;
    if (starts_inside || reaches_next || tombstones_.contains({device, address})) {
        return std::nullopt;
    }
    return insert(device, address, size, nature);
}

void Ledger::end_adoption() {
    adopting_ = false;
    tombstones_.clear();
}

std::vector<Segment> Ledger::segments(int device) const {
    std::vector<Segment> segments;
    if (const auto found = devices_.find(device); found != devices_.end()) {
        segments.reserve(found->second.size());
        for (const auto& [address, segment] : found->second) {
            segments.push_back(segment);
        }
    }
    return segments;
}

std::vector<Segment> Ledger::all() const {
    std::vector<Segment> segments;
    for (const auto& [device, live] : devices_) {
        for (const auto& [address, segment] : live) {
            segments.push_back(segment);
        }
    }
    return segments;
}

std::optional<Segment> Ledger::at(std::uintptr_t address) const noexcept {
    for (const auto& [device, live] : devices_) {
        const auto next = live.upper_bound(address);
        if (next != live.begin() && address < std::prev(next)->second.end()) {
            return std::prev(next)->second;
        }
    }
    return std::nullopt;
}

std::size_t Ledger::count() const noexcept {
    std::size_t count = 0;
    for (const auto& [device, live] : devices_) {
        count += live.size();
    }
    return count;
}

} // namespace tracehook::registrar
