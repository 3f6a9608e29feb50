#include "events/tally.h"

namespace tracehook::events {

std::vector<Tally::Entry> Tally::entries() const {
    std::vector<Entry> found;
    const auto read = [&](const Slot& slot) {
        const std::uint64_t kind = slot.kind.load(std::memory_order_acquire);
        const std::uint64_t count = get(slot.count);
        if (kind != 0 && count != 0) {
            found.push_back({kind, count, get(slot.nbytes), get(slot.least), get(slot.most)});
        }
    };
    std::ranges::for_each(slots_, read);
    read(other_);
    return found;
}

void Tally::clear() noexcept {
    const auto empty = [](Slot& slot) {
        for (Word* word : {&slot.kind, &slot.count, &slot.nbytes, &slot.least, &slot.most}) {
            set(*word, 0);
        }
    };
    std::ranges::for_each(slots_, empty);
    empty(other_);
}

} // namespace tracehook::events
