// `_core.HostBoard`: where the ranks of one host meet.
#include "bindings/bindings.h"
#include "symmetric_memory/host_board.h"

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

void bind_boards(py::module_& module) {
    using core::HostBoard;
    py::class_<HostBoard>(module, "HostBoard",
                          "Where the ranks of one host meet (cpp/symmetric_memory/host_board.h); "
                          "opening one raises OSError")
        .def(py::init([](const std::string& path, std::size_t ranks, std::size_t own) {
            try {
                return std::make_unique<HostBoard>(path, ranks, own);
            } catch (const std::system_error& problem) {
                errno = problem.code().value();
                PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
                throw py::error_already_set();
            }
        }))
        .def_property_readonly("is_complete", &HostBoard::is_complete)
        .def("post", &HostBoard::post)
        .def(
            "gather",
            [](HostBoard& self, std::uint64_t number, double seconds) {
                return self.gather(number, in_nanoseconds(seconds));
            },
            NoGil())
        .def("newest", &HostBoard::newest)
        .def("publish", &HostBoard::publish)
        .def_property_readonly("is_closed", &HostBoard::is_closed)
        .def("settle", &HostBoard::settle)
        .def("close", &HostBoard::close)
        .def(
            "settled",
            [](HostBoard& self, std::uint64_t number, double seconds) {
                return self.settled(number, in_nanoseconds(seconds));
            },
            NoGil())
        .def(
            "published",
            [](const HostBoard& self, std::uint64_t number, double seconds) {
                return self.published(number, in_nanoseconds(seconds));
            },
            NoGil());
}

} // namespace tracehook
