// What Python gets of the native tables, row by row. Shared by the modules `_core` and `_testing`.
//
// Called with the GIL; peek() gives it up while it waits for the ring's mutex.
#pragma once

#include "core/registrar.h"
#include "events/ring.h"
#include "symmetric_memory/bank.h"

#include <pybind11/pybind11.h>

namespace tracehook {

namespace py = pybind11;

using NoGil = py::call_guard<py::gil_scoped_release>;

// The events that were not drained yet, as bytes of core::Event.
py::bytes peek(core::Ring& ring, std::size_t limit, std::size_t skip);
// The counted calls of communicators that have ended, or of all (`live` too), each once: bytes of
// core::CallSlot.
py::list unlogged_calls(core::Ring& ring, bool live);
py::list communicators(const core::Registrar& registrar);
py::list segments(const core::Registrar& registrar);
py::list ranges(const core::Registrar& registrar);
py::list pool_segments(const core::Bank& bank);
py::tuple last_refusal(const core::Bank& bank);

} // namespace tracehook
