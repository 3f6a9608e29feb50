// `_core.HostMailbox`: where the ranks of one host meet.
#include "bindings/bindings.h"
#include "symmetric_memory/host_mailbox.h"

#include <cerrno>
#include <chrono>
#include <memory>
#include <pybind11/stl.h>
#include <system_error>

namespace tracehook {

namespace {

std::chrono::nanoseconds in_nanoseconds(double seconds) {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

} // namespace

void bind_mailboxes(py::module_& module) {
    using core::HostMailbox;
    py::class_<HostMailbox>(
        module, "HostMailbox",
        "Where the ranks of one host meet (cpp/symmetric_memory/host_mailbox.h); "
        "opening one raises OSError")
        .def(py::init([](const std::string& path, std::size_t ranks, std::size_t own) {
            try {
                return std::make_unique<HostMailbox>(path, ranks, own);
            } catch (const std::system_error& problem) {
                errno = problem.code().value();
                PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
                throw py::error_already_set();
            }
        }))
        .def_property_readonly("is_complete", &HostMailbox::is_complete)
        .def("post", &HostMailbox::post)
        .def(
            "gather",
            [](HostMailbox& self, std::uint64_t number, double seconds) {
                return self.gather(number, in_nanoseconds(seconds));
            },
            NoGil())
        .def("publish", &HostMailbox::publish)
        .def(
            "published",
            [](const HostMailbox& self, std::uint64_t number, double seconds) {
                return self.published(number, in_nanoseconds(seconds));
            },
            NoGil());
}

} // namespace tracehook
