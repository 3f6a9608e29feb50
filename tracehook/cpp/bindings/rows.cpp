#include "bindings/rows.h"

#include "events/passed.h"
#include "windows/communicator_windows.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace tracehook::bindings {

namespace {

// Bytes. What goes when the communicator is suspended has gone, if it is.
py::object memory_of(registrar::Communicator& communicator, bool look) {
    std::optional<registrar::LibraryMemory> found;
    {
        const py::gil_scoped_release release;
        found = look ? communicator.memory() : communicator.last_memory();
    }
    if (!found) {
        return py::none();
    }
    const bool rests = communicator.rests();
    py::dict row;
    row["suspendable"] = rests ? 0 : found->suspendable;
    row["suspended"] = rests ? found->suspendable : 0;
    row["persistent"] = found->persistent;
    return row;
}

#define HEAD(type, member, nothing) visit(#member, event.member);
template <typename Visit> void visit_head(events::Event& event, Visit&& visit) {
#include "events/head.def"
}
#undef HEAD

#define OWN(type, member) visit(#member, own.member);
#define EVENT(name, ...) EVENT_(name, __VA_ARGS__)
#define EVENT_(name, text, severity, fields, ...)                                                  \
    template <typename Visit>                                                                      \
    void visit_own([[maybe_unused]] events::row::name& own, [[maybe_unused]] Visit&& visit) {      \
        fields                                                                                     \
    }
#include "events/events.def"
#undef EVENT_

template <typename Visit>
bool visit_own(events::Event& event, const std::string& name, Visit&& visit) {
#define EVENT(name_, text, ...)                                                                    \
    if (name == text) {                                                                            \
        event.kind = events::EventKind::k##name_;                                                  \
        visit_own(*std::launder(reinterpret_cast<events::row::name_*>(event.own)), visit);         \
        return true;                                                                               \
    }
#include "events/events.def"
    return false;
}

} // namespace

events::Event event_of(const std::string& name, const py::kwargs& fields) {
    events::Event event;
    std::size_t found = 0;
    const auto set = [&]<typename Member>(const char* member, Member& place) {
        const bool given = fields.contains(member);
        if (given) {
            ++found;
            if constexpr (requires { place.value; }) {
                place = fields[member].template cast<decltype(place.value)>();
            } else if constexpr (std::is_integral_v<Member>) {
                place = fields[member].template cast<Member>();
            }
        }
        return given;
    };
    const auto set_own = [&](const char* member, auto& place) {
        if (!set(member, place)) {
            throw std::invalid_argument(name + " lacks " + member);
        }
    };
    if (!visit_own(event, name, set_own)) {
        throw std::invalid_argument("no event of the ring is named " + name);
    }
    visit_head(event, set);
    if (found != fields.size()) {
        throw std::invalid_argument(name + " has fewer fields than were given");
    }
    return event;
}

py::bytes peek(events::Ring& ring, std::size_t limit, std::size_t skip) {
    std::vector<events::Event> events(limit);
    std::size_t count = 0;
    {
        const py::gil_scoped_release release;
        count = ring.peek(events, skip);
    }
    return {reinterpret_cast<const char*>(events.data()), count * sizeof(events::Event)};
}

py::object peek_summed(events::Ring& ring, std::size_t limit, std::size_t least) {
    std::vector<events::Event> events;
    events::Passed passed;
    std::size_t count = 0;
    std::size_t kept = 0;
    std::uint64_t last = 0;
    {
        const py::gil_scoped_release release;
        if (ring.waiting() >= std::max<std::size_t>(least, 1)) {
            events.resize(limit);
            count = ring.peek(events);
        }
        if (count > 0) {
            last = events[count - 1].seq;
            kept = events::take_passed_out(std::span(events).first(count), passed);
        }
    }
    if (count == 0) {
        return py::none();
    }
    return py::make_tuple(
        py::bytes(reinterpret_cast<const char*>(events.data()), kept * sizeof(events::Event)),
        count, last,
        py::make_tuple(passed.events, passed.segments, passed.bytes, passed.registrations,
                       passed.ranges));
}

py::list unlogged_calls(events::Ring& ring, bool live) {
    py::list out;
    for (const events::CallSlot* slot : ring.calls().unlogged(live)) {
        out.append(py::bytes(reinterpret_cast<const char*>(slot), sizeof(*slot)));
    }
    return out;
}

py::list tallied(events::Ring& ring) {
    py::list out;
    for (const events::CallTable::Tallied& row : ring.calls().tallied()) {
        const events::Tally::Entry& entry = row.entry;
        out.append(py::make_tuple(row.key, row.comm_id, row.rank, row.size, row.surroundings,
                                  entry.kind, entry.count, entry.nbytes, entry.least, entry.most));
    }
    return out;
}

py::list communicators(const registrar::Registrar& registrar, bool look) {
    py::list rows;
    for (const auto& communicator : registrar.communicators()) {
        const registrar::Identity& who = communicator->identity();
        py::dict row;
        row["id"] = who.id;
        row["key"] = who.key;
        row["pointer"] = reinterpret_cast<std::uintptr_t>(who.pointer);
        row["device"] = who.device;
        row["rank"] = who.rank;
        row["size"] = who.size;
        row["ready"] = communicator->was_ready();
        row["failed"] = communicator->failed();
        row["suspended"] = communicator->rests();
        row["memory"] = memory_of(*communicator, look);
        row["held"] = communicator->held();
        row["made"] = communicator->made();
        row["undone"] = communicator->undone();
        row["in_effect"] = communicator->in_effect();
        row["in_vain"] = communicator->in_vain();
        row["at_calls"] = who.when == registrar::When::kAtCalls;
        row["one_host"] = who.one_host;
        row["spared"] = who.spared;
        row["device_communicators"] = windows::of(*communicator).device_communicators();
        row["local"] = static_cast<int>(who.local);
        row["segments_since_ns"] = communicator->segments_in_progress().since_ns();
        row["windows_since_ns"] = windows::of(*communicator).windows_in_progress().since_ns();
        rows.append(row);
    }
    return rows;
}

std::vector<registrar::SegmentRule> rules_of(const std::vector<RuleRow>& rows) {
    std::vector<registrar::SegmentRule> rules;
    rules.reserve(rows.size());
    for (const auto& [pools, memories, below, least, most, one_host, across] : rows) {
        rules.push_back({pools, memories, below, least, most, one_host, across});
    }
    return rules;
}

py::list ranges(const registrar::Registrar& registrar) {
    py::list rows;
    for (const registrar::Range& range : registrar.ranges()) {
        rows.append(py::make_tuple(range.device, range.address, range.size));
    }
    return rows;
}

} // namespace tracehook::bindings
