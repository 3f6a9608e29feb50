#include "registration.h"

#include <algorithm>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::uintptr_t kPage = 4096;

Extent widened(std::uintptr_t begin, std::size_t size) {
    return {begin & ~(kPage - 1), (begin + size + kPage - 1) & ~(kPage - 1)};
}

} // namespace

void* RegistrationCache::add(std::uintptr_t begin, std::size_t size, Holder holder) {
    const Extent pages = widened(begin, size);
    const std::lock_guard lock(mutex_);
    auto slot = records_.begin();
    for (; slot != records_.end() && (*slot)->head.pages.begin <= pages.begin; ++slot) {
        if ((*slot)->head.pages.end >= pages.end) {
            ++(*slot)->of(holder);
            ++(*slot)->head.local_references;
            return &(*slot)->head;
        }
    }
    // Never deleted: see the header.
    auto* record = new Record{{pages, 1, 0, 0}, {begin, begin + size}, {}};
    record->of(holder) = 1;
    records_.insert(slot, record);
    return &record->head;
}

std::vector<RegistrationCache::Record*>::const_iterator
RegistrationCache::find(const void* handle) const {
    return std::ranges::find_if(records_,
                                [=](const Record* record) { return &record->head == handle; });
}

RegistrationCache::Record* RegistrationCache::holder_of(std::uintptr_t begin,
                                                        std::uintptr_t end) const {
    const auto found = std::ranges::find_if(records_, [&](const Record* record) {
        return record->head.pages.begin <= begin && end <= record->head.pages.end;
    });
    return found != records_.end() ? *found : nullptr;
}

std::optional<RegistrationCache::Removed> RegistrationCache::remove(void* handle, Holder holder) {
    const std::lock_guard lock(mutex_);
    const auto slot = find(handle);
    if (slot == records_.end() || !(*slot)->held_by(holder)) {
        return std::nullopt;
    }
    Record& record = **slot;
    --record.of(holder);
    --record.head.local_references;
    if (record.held_by(Holder::kClient) || record.held_by(Holder::kWindow)) {
        return Removed{record.exact, false};
    }
    records_.erase(slot);
    return Removed{record.exact, record.use.use_count() > 1};
}

bool RegistrationCache::holds(void* handle, Holder holder) const {
    const std::lock_guard lock(mutex_);
    const auto slot = find(handle);
    return slot != records_.end() && (*slot)->held_by(holder);
}

std::shared_ptr<const void> RegistrationCache::covers(const void* pointer, std::size_t size) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    const std::lock_guard lock(mutex_);
    const Record* record = holder_of(begin, begin + size);
    return record != nullptr ? record->use : nullptr;
}

bool RegistrationCache::mark_in_effect(std::uintptr_t begin, std::uintptr_t end, bool by_messages) {
    const std::lock_guard lock(mutex_);
    Record* const record = holder_of(begin, end);
    if (record == nullptr) {
        return false;
    }
    record->head.state.fetch_or(kInEffect);
    record->first_by_messages = record->first_by_messages.value_or(by_messages);
    return *record->first_by_messages;
}

std::vector<Extent> RegistrationCache::take_freed(std::uintptr_t base, std::size_t size) {
    std::vector<Extent> extents;
    const std::lock_guard lock(mutex_);
    for (Record* record : records_) {
        if (!record->freed && record->held_by(Holder::kClient) &&
            record->exact.begin < base + size && base < record->exact.end) {
            record->freed = true;
            extents.push_back(record->exact);
        }
    }
    return extents;
}

std::size_t RegistrationCache::size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count_if(
        records_, [](const Record* record) { return record->held_by(Holder::kClient); }));
}

} // namespace tracehook::rehearsal::nccl
