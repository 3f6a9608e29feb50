#include "registrar/pausable.h"

#include <algorithm>

namespace tracehook::registrar {

bool Pausable::lacks_memory(const Segment& segment) const {
    return std::ranges::any_of(missing_.all(), [&](const Range& range) {
        return range.address < segment.end() && segment.address < range.end();
    });
}

void Pausable::lose(const Segment& segment, std::uintptr_t address, std::size_t size) {
    const std::uintptr_t begin = std::max(address, segment.address);
    const std::uintptr_t end = std::min(address + size, segment.end());
    if (begin < end) {
        missing_.map(kAnywhere, begin, end - begin);
    }
}

std::vector<Segment> Pausable::mapped(std::uintptr_t address, std::size_t size) {
    mapped_.map(kAnywhere, address, size);
    missing_.unmap(kAnywhere, address, size);
    std::vector<Segment> awake;
    std::erase_if(asleep_, [&](const auto& entry) {
        const bool wakes = !lacks_memory(entry.second);
        if (wakes) {
            awake.push_back(entry.second);
        }
        return wakes;
    });
    return awake;
}

void Pausable::unmapped(std::uintptr_t address, std::size_t size,
                        const std::vector<Segment>& segments) {
    mapped_.unmap(kAnywhere, address, size);
    for (const Segment& segment : segments) {
        asleep_.insert_or_assign({segment.device, segment.address}, segment);
    }
    for (const auto& [place, segment] : asleep_) {
        lose(segment, address, size);
    }
}

std::optional<Segment> Pausable::freed(int device, std::uintptr_t address) {
    const auto found = asleep_.find({device, address});
    if (found == asleep_.end()) {
        return std::nullopt;
    }
    const Segment segment = found->second;
    asleep_.erase(found);
    missing_.unmap(kAnywhere, segment.address, segment.size);
    return segment;
}

std::vector<Segment> Pausable::asleep() const {
    std::vector<Segment> all;
    for (const auto& [place, segment] : asleep_) {
        all.push_back(segment);
    }
    return all;
}

} // namespace tracehook::registrar
