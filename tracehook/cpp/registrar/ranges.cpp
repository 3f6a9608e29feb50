#include "registrar/ranges.h"

#include <algorithm>
#include <iterator>

namespace tracehook::registrar {

namespace {

std::vector<Range> without(const std::vector<Range>& ranges, const Range& taken) {
    std::vector<Range> left;
    for (const Range& range : ranges) {
        if (taken.device != range.device || taken.end() <= range.address ||
            taken.address >= range.end()) {
            left.push_back(range);
            continue;
        }
        if (range.address < taken.address) {
            left.push_back({range.device, range.address, taken.address - range.address});
        }
        if (range.end() > taken.end()) {
            left.push_back({range.device, taken.end(), range.end() - taken.end()});
        }
    }
    return left;
}

} // namespace

void Ranges::map(int device, std::uintptr_t address, std::size_t size) {
    ++version_;
    if (size == 0) {
        return;
    }
    Ends& ends = devices_[device];
    std::uintptr_t begin = address;
    std::uintptr_t end = address + size;
    auto next = ends.upper_bound(begin);
    if (next != ends.begin() && std::prev(next)->second >= begin) {
        --next;
    }
    while (next != ends.end() && next->first <= end) {
        begin = std::min(begin, next->first);
        end = std::max(end, next->second);
        bytes_ -= next->second - next->first;
        next = ends.erase(next);
    }
    ends.emplace(begin, end);
    bytes_ += end - begin;
}

bool Ranges::any_in(int device, std::uintptr_t address, std::size_t size) const noexcept {
    const auto found = devices_.find(device);
    if (found == devices_.end()) {
        return false;
    }
    const auto next = found->second.lower_bound(address + size);
    return next != found->second.begin() && std::prev(next)->second > address;
}

void Ranges::unmap(int device, std::uintptr_t address, std::size_t size) {
    ++version_;
    if (adopting_) {
        unmapped_.push_back({device, address, size});
    }
    Ends& ends = devices_[device];
    const std::uintptr_t end = address + size;
    auto next = ends.upper_bound(address);
    if (next != ends.begin() && std::prev(next)->second > address) {
        --next;
    }
    while (next != ends.end() && next->first < end) {
        const auto [first, last] = *next;
        next = ends.erase(next);
        bytes_ -= std::min(last, end) - std::max(first, address);
        if (first < address) {
            ends.emplace(first, address);
        }
        if (last > end) {
            ends.emplace(end, last);
        }
    }
}

std::vector<Range> Ranges::unknown(int device, std::uintptr_t address, std::size_t size) const {
    std::vector<Range> ranges{{device, address, size}};
    for (const Range& gone : unmapped_) {
        ranges = without(ranges, gone);
    }
    if (const auto found = devices_.find(device); found != devices_.end()) {
        for (const auto& [begin, end] : found->second) {
            ranges = without(ranges, {device, begin, end - begin});
        }
    }
    return ranges;
}

void Ranges::end_adoption() {
    adopting_ = false;
    unmapped_.clear();
}

std::vector<Range> Ranges::all() const {
    std::vector<Range> ranges;
    for (const auto& [device, ends] : devices_) {
        for (const auto& [begin, end] : ends) {
            ranges.push_back({device, begin, end - begin});
        }
    }
    return ranges;
}

std::optional<Range> Ranges::at(std::uintptr_t address) const noexcept {
    for (const auto& [device, ends] : devices_) {
        const auto next = ends.upper_bound(address);
        if (next != ends.begin() && address < std::prev(next)->second) {
            const auto& [begin, end] = *std::prev(next);
            return Range{device, begin, end - begin};
        }
    }
    return std::nullopt;
}

} // namespace tracehook::registrar
