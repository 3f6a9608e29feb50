// The submodule `_core.ipc`: what tracehook.ipc asks of the native side.
#pragma once

#include <pybind11/pybind11.h>

namespace tracehook {

void bind_ipc(pybind11::module_& core);

} // namespace tracehook
