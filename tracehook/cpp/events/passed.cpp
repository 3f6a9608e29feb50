#include "events/passed.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

namespace tracehook::events {

namespace {

// The number of the allocator's segment that an event names; 0: it names none.
std::uint64_t segment_of(const Event& event) noexcept {
    const auto named = [](const auto& own) -> std::uint64_t {
        if constexpr (requires { own.segment; }) {
            return own.segment;
        }
        return 0;
    };
    switch (event.kind) {
#define EVENT(name, ...)                                                                           \
    case EventKind::k##name:                                                                       \
        return named(own_of<row::name>(event));
#include "events/events.def"
    default:
        return 0;
    }
}

struct Life {
    bool begun = false;
    bool over = false;
    bool odd = false; // something about it is worth a line
    std::uint64_t bytes = 0;
    std::uint64_t events = 0;
    std::uint64_t registrations = 0;
    std::vector<std::uint32_t> held_by; // numbers of communicators

    bool passed() const noexcept { return begun && over && !odd && held_by.empty(); }

    void add(const Event& event) {
        ++events;
        odd = odd || over || event.result != 0;
        switch (event.kind) {
        case EventKind::kSegmentAlloc:
            odd = odd || begun;
            begun = true;
            bytes = own_of<row::SegmentAlloc>(event).size;
            break;
        case EventKind::kSegmentFree:
            over = true;
            odd = odd || !held_by.empty();
            break;
        case EventKind::kRegisterLocal:
            odd = odd || !begun || own_of<row::RegisterLocal>(event).effective == Maybe::kFalse ||
                  std::ranges::find(held_by, event.comm_id) != held_by.end();
            held_by.push_back(event.comm_id);
            ++registrations;
            break;
        case EventKind::kDeregisterLocal:
            odd = odd || std::erase(held_by, event.comm_id) != 1;
            break;
        default:
            odd = true;
            break;
        }
    }
};

// As a number it marks events to take out: the ring counts from 1.
constexpr std::uint64_t kPassed = 0;

struct RangeKey {
    std::int16_t device;
    std::uint64_t address;
    std::uint64_t size;

    auto operator<=>(const RangeKey&) const = default;
};

// A range may be mapped at the same place again and again, so each life is a pair of events.
void mark_passed_ranges(std::span<Event> batch, Passed& passed) {
    std::map<RangeKey, Event*> mapped;
    const auto key_of = [](const Event& event, const auto& own) {
        return RangeKey{event.device, own.addr, own.size};
    };
    for (Event& event : batch) {
        if (event.kind == EventKind::kRangeMap) {
            const auto& own = own_of<row::RangeMap>(event);
            mapped[key_of(event, own)] = own.adopted ? nullptr : &event;
        } else if (event.kind == EventKind::kRangeUnmap) {
            const auto found = mapped.extract(key_of(event, own_of<row::RangeUnmap>(event)));
            if (found && found.mapped() != nullptr) {
                found.mapped()->seq = event.seq = kPassed;
                passed.events += 2;
                passed.ranges += 1;
            }
        }
    }
}

} // namespace

std::size_t take_passed_out(std::span<Event> batch, Passed& passed) {
    mark_passed_ranges(batch, passed);
    std::unordered_map<std::uint64_t, Life> lives; // numbers of segments are those of the process
    for (const Event& event : batch) {
        if (const std::uint64_t segment = segment_of(event); segment != 0) {
            lives[segment].add(event);
        }
    }
    for (const auto& [segment, life] : lives) {
        if (life.passed()) {
            passed.events += life.events;
            passed.segments += 1;
            passed.bytes += life.bytes;
            passed.registrations += life.registrations;
        }
    }
    const auto gone = std::ranges::remove_if(batch, [&lives](const Event& event) {
        const std::uint64_t segment = segment_of(event);
        return event.seq == kPassed || (segment != 0 && lives[segment].passed());
    });
    return batch.size() - gone.size();
}

} // namespace tracehook::events
