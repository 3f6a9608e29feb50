#include "registrar/pausable.h"

#include <algorithm>
#include <iterator>

namespace tracehook::registrar {

Pausable::Place Pausable::first_behind(std::uintptr_t address) noexcept {
    const auto next = asleep_.upper_bound(address);
    const bool reaches = next != asleep_.begin() && std::prev(next)->second.end() > address;
    return reaches ? std::prev(next) : next;
}

std::vector<Segment> Pausable::mapped(std::uintptr_t address, std::size_t size) {
    mapped_.map(kAnywhere, address, size);
    missing_.unmap(kAnywhere, address, size);
    std::vector<Segment> awake;
    for (Place next = first_behind(address);
         next != asleep_.end() && next->first < address + size;) {
        const Segment& segment = next->second;
        if (missing_.any_in(kAnywhere, segment.address, segment.size)) {
            ++next;
        } else {
            awake.push_back(segment);
            next = asleep_.erase(next);
        }
    }
    return awake;
}

void Pausable::unmapped(std::uintptr_t address, std::size_t size,
                        const std::vector<Segment>& segments) {
    mapped_.unmap(kAnywhere, address, size);
    for (const Segment& segment : segments) {
        asleep_.insert_or_assign(segment.address, segment);
    }
    for (Place next = first_behind(address); next != asleep_.end() && next->first < address + size;
         ++next) {
        const Segment& segment = next->second;
        const std::uintptr_t begin = std::max(address, segment.address);
        missing_.map(kAnywhere, begin, std::min(address + size, segment.end()) - begin);
    }
}

std::optional<Segment> Pausable::freed(int device, std::uintptr_t address) {
    const auto found = asleep_.find(address);
    if (found == asleep_.end() || found->second.device != device) {
        return std::nullopt;
    }
    const Segment segment = found->second;
    asleep_.erase(found);
    missing_.unmap(kAnywhere, segment.address, segment.size);
    return segment;
}

std::vector<Segment> Pausable::asleep() const {
    std::vector<Segment> all;
    all.reserve(asleep_.size());
    for (const auto& [place, segment] : asleep_) {
        all.push_back(segment);
    }
    return all;
}

} // namespace tracehook::registrar
