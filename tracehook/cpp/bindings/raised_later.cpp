// What Python raised in the midst of a call of NCCL, such as the handler of Ctrl-C or of an alarm.
// No exception of Python can pass NCCL and torch, so the program gets it when the call has
// returned.
#include "bindings/bindings.h"

#include <memory>
#include <sys/syscall.h>
#include <unistd.h>

namespace tracehook::bindings {

namespace {

struct Raised {
    py::object type, value, trace;
};

int raise(void* kept) {
    const std::unique_ptr<Raised> raised(static_cast<Raised*>(kept));
    PyErr_Restore(raised->type.release().ptr(), raised->value.release().ptr(),
                  raised->trace.release().ptr());
    return -1;
}

} // namespace

bool raise_later(const py::error_already_set& failure) {
    if (syscall(SYS_gettid) != getpid()) {
        return false; // no handler runs here, and Python would raise it on its main thread
    }
    auto* const raised = new Raised{failure.type(), failure.value(), failure.trace()};
    const bool is_kept = Py_AddPendingCall(&raise, raised) == 0;
    if (!is_kept) { // Python keeps 32 at most
        delete raised;
    }
    return is_kept;
}

} // namespace tracehook::bindings
