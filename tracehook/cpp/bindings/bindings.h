// What the files of the module `_core` share. Only files of this folder and of testing/ include
// pybind11. Everything that may wait for a lock, an allocator, NCCL or CUDA gives up the GIL first.
#pragma once

#include "bindings/rows.h"
#include "process/process.h"

namespace tracehook::bindings {

// The one of this process. Throws std::runtime_error if tracehook is not started in it.
process::Process& process();

// Whether Python can no longer be asked for anything.
bool is_finalizing();

// Has Python raise again, when the call of NCCL that runs has returned, what was raised within it.
// With the GIL. False, and nothing is kept, if that cannot be: then say it otherwise.
bool raise_later(const py::error_already_set& failure);

void bind_symmetric(py::module_& module);
void bind_entered(py::module_& module); // `_core.Entered`: what a `with` statement enters
void bind_window_guard(py::module_& module);
void bind_stacks(py::module_& module);
void bind_thread_end(py::module_& module);
void bind_feed(py::module_& module);
void bind_ipc(py::module_& core); // `_core.ipc`: what tracehook.ipc asks of the native side

} // namespace tracehook::bindings
