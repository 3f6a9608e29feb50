// How a thread of tracehook ends that comes back from C++ (torch's store) after the interpreter.
#include "bindings/bindings.h"

#include <cstdlib>
#include <exception>
#include <unistd.h>

namespace tracehook::bindings {

namespace {

thread_local bool waits_at_end = false;
std::terminate_handler before = nullptr;

// Before 3.14, Python ends such a thread where it asks for the GIL: in a destructor that nothing
// may leave, so C++ calls this. It holds no lock of Python's, and the process is about to end.
[[noreturn]] void wait_or_terminate() {
    while (waits_at_end && (Py_IsInitialized() == 0 || is_finalizing())) {
        ::pause();
    }
    if (before != nullptr) {
        before();
    }
    std::abort();
}

void wait_at_end() {
    [[maybe_unused]] static const bool is_set = [] {
        before = std::set_terminate(&wait_or_terminate);
        return true;
    }();
    waits_at_end = true;
}

} // namespace

void bind_thread_end(py::module_& module) {
    module.def(
        "wait_at_end", &wait_at_end,
        "This thread is tracehook's: if it comes back after the interpreter, it waits for the "
        "end of the process, and does not abort it");
}

} // namespace tracehook::bindings
