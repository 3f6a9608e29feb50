#include "registrar/aliases.h"

#include <utility>

namespace tracehook::registrar {

Aliases::Entry* Aliases::find(const Segment& segment) noexcept {
    return segment.slot < by_slot_.size() && by_slot_[segment.slot].segment == segment.id
               ? &by_slot_[segment.slot]
               : nullptr;
}

std::uintptr_t Aliases::of(const Segment& segment, bool for_ever) noexcept {
    if (memory_ == nullptr) {
        return 0;
    }
    {
        const std::lock_guard guard(mutex_);
        if (Entry* const entry = find(segment)) {
            entry->for_ever |= for_ever;
            return entry->alias;
        }
    }
    const std::uintptr_t made = memory_->map_again(segment);
    {
        const std::lock_guard guard(mutex_);
        const Entry* const entry = find(segment);
        if (entry == nullptr) {
            if (segment.slot >= by_slot_.size()) {
                by_slot_.resize(std::size_t{segment.slot} + 1);
            }
            by_slot_[segment.slot] = {segment.id, made, for_ever};
            return made;
        }
        if (made == 0) {
            return entry->alias;
        }
    }
    memory_->unmap(segment, made, false); // a call on another communicator was first
    return of(segment, for_ever);
}

bool Aliases::has(const Segment& segment) noexcept {
    const std::lock_guard guard(mutex_);
    const Entry* const entry = find(segment);
    return entry != nullptr && entry->alias != 0;
}

void Aliases::drop(const Segment& segment, bool is_done) noexcept {
    std::uintptr_t alias = 0;
    {
        const std::lock_guard guard(mutex_);
        if (Entry* const entry = find(segment)) {
            const Entry gone = std::exchange(*entry, {});
            alias = gone.for_ever ? 0 : gone.alias;
        }
    }
    if (alias != 0) {
        memory_->unmap(segment, alias, is_done);
    }
}

} // namespace tracehook::registrar
