// What Python gets of the native tables, row by row. Shared by the modules `_core` and `_testing`.
//
// Called with the GIL; peek() gives it up while it waits for the ring's mutex.
#pragma once

#include "events/ring.h"
#include "registrar/registrar.h"

#include <pybind11/pybind11.h>
#include <tuple>
#include <vector>

namespace tracehook::bindings {

namespace py = pybind11;

using NoGil = py::call_guard<py::gil_scoped_release>;

// An event that Python pushes: each member of its row by name, and any of the head. Throws
// std::invalid_argument if no event of the ring has that name, or if a member lacks or is none.
events::Event event_of(const std::string& name, const py::kwargs& fields);

// The events that were not drained yet, as bytes of events::Event.
py::bytes peek(events::Ring& ring, std::size_t limit, std::size_t skip);

// If at least `least` events wait: (up to `limit` of them without those of segments that came and
// went among them, how many they were, number of the last one, what was taken out as (events,
// segments, bytes, registrations)). Else None.
py::object peek_summed(events::Ring& ring, std::size_t limit, std::size_t least);

// The counted calls of communicators that have ended, or of all (`live` too), each once: bytes of
// events::CallSlot.
py::list unlogged_calls(events::Ring& ring, bool live);
// What collectives there were: (key, comm_id, rank, size, surroundings, kind, count, nbytes, least,
// most) of each kind of each communicator.
py::list tallied(events::Ring& ring);
// `look`: asks the library for its memory, where nobody is inside the gate; else the memory is what
// was found last.
py::list communicators(const registrar::Registrar& registrar, bool look);
py::list ranges(const registrar::Registrar& registrar);

// A rule as Python writes it: the members of registrar::SegmentRule, in their order.
using RuleRow = std::tuple<std::uint32_t, std::uint32_t, std::size_t, int, int, bool, bool>;
std::vector<registrar::SegmentRule> rules_of(const std::vector<RuleRow>& rows);

} // namespace tracehook::bindings
