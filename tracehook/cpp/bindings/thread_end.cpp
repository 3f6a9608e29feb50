// How a thread ends that comes back from C++ after the interpreter: one of tracehook that was in
// torch's store, or one of the program that was in a scope or in the allocator.
#include "bindings/bindings.h"

#include <cstdlib>
#include <exception>
#include <sys/syscall.h>
#include <unistd.h>

namespace tracehook::bindings {

namespace {

constexpr int kSecondsToEnd = 30; // seconds that the process has to end
std::terminate_handler before = nullptr;

// Whether Python ends this thread, which is none of the interpreter's own exit. That is no C++
// exception.
bool is_ended_by_python() noexcept {
    return std::current_exception() == nullptr && syscall(SYS_gettid) != getpid() &&
           (Py_IsInitialized() == 0 || is_finalizing());
}

// Before 3.14, Python ends such a thread where it asks for the GIL: in a destructor that nothing
// may leave, so C++ calls this. It holds no lock of Python's, and the process is about to end.
[[noreturn]] void wait_or_terminate() {
    for (int second = 0; second < kSecondsToEnd && is_ended_by_python(); ++second) {
        ::sleep(1);
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
}

} // namespace

void bind_thread_end(py::module_& module) {
    module.def("wait_at_end", &wait_at_end,
               "A thread that comes back after the interpreter waits for the end of the process, "
               "and does not abort it");
}

} // namespace tracehook::bindings
