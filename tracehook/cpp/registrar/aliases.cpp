#include "registrar/aliases.h"

#include <algorithm>
#include <utility>

namespace tracehook::registrar {

Aliases::Entry* Aliases::find(const Segment& segment) noexcept {
    return segment.slot < by_slot_.size() && by_slot_[segment.slot].segment == segment.id
               ? &by_slot_[segment.slot]
               : nullptr;
}

std::uintptr_t Aliases::of(const Segment& segment, RegisteredFor what, bool for_ever) noexcept {
    if (memory_ == nullptr) {
        return 0;
    }
    const auto which = static_cast<std::size_t>(what);
    {
        const std::lock_guard guard(mutex_);
        if (Entry* const entry = find(segment); entry != nullptr && entry->aliases[which].tried) {
            entry->aliases[which].for_ever |= for_ever;
            return entry->aliases[which].address;
        }
    }
    const std::uintptr_t made = memory_->map_again(segment);
    {
        const std::lock_guard guard(mutex_);
        if (find(segment) == nullptr) {
            if (segment.slot >= by_slot_.size()) {
                by_slot_.resize(std::size_t{segment.slot} + 1);
            }
            by_slot_[segment.slot] = {segment.id, {}};
        }
        Alias& alias = by_slot_[segment.slot].aliases[which];
        if (!alias.tried) {
            alias = {true, made, for_ever};
            return made;
        }
        if (made == 0) {
            return alias.address;
        }
    }
    memory_->unmap(segment, made, false); // a call on another communicator was first
    return of(segment, what, for_ever);
}

bool Aliases::has(const Segment& segment) noexcept {
    const std::lock_guard guard(mutex_);
    const Entry* const entry = find(segment);
    return entry != nullptr && std::ranges::any_of(entry->aliases, [](const Alias& alias) {
               return alias.address != 0;
           });
}

void Aliases::drop(const Segment& segment, bool is_done) noexcept {
    Entry gone;
    {
        const std::lock_guard guard(mutex_);
        if (Entry* const entry = find(segment)) {
            gone = std::exchange(*entry, {});
        }
    }
    for (const Alias& alias : gone.aliases) {
        if (alias.address != 0 && !alias.for_ever) {
            memory_->unmap(segment, alias.address, std::exchange(is_done, true));
        }
    }
}

} // namespace tracehook::registrar
