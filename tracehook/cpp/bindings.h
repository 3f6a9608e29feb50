// What the files of the module `_core` share. Only bindings*.cpp include pybind11. Everything that
// may wait for a lock, an allocator, NCCL or CUDA gives up the GIL first.
#pragma once

#include "core/bank.h"
#include "core/event.h"
#include "core/registrar.h"
#include "core/ring.h"
#include "process.h"

#include <pybind11/pybind11.h>

namespace tracehook {

namespace py = pybind11;

using NoGil = py::call_guard<py::gil_scoped_release>;

// The one of this process. Throws std::runtime_error if tracehook is not started in it.
Process& process();
// Throws std::invalid_argument if no event has that name.
core::EventKind kind_of(const std::string& name);
py::bytes peek(core::Ring& ring, std::size_t limit, std::size_t skip);
py::list communicators(const core::Registrar& registrar);
py::list segments(const core::Registrar& registrar);
py::list ranges(const core::Registrar& registrar);
py::list pool_segments(const core::Bank& bank);
py::tuple last_refusal(const core::Bank& bank);

void bind_symmetric(py::module_& module);
void bind_harness(py::module_& module); // the tests' registrar, without devices
void bind_ipc(py::module_& core);       // `_core.ipc`: what tracehook.ipc asks of the native side

} // namespace tracehook
