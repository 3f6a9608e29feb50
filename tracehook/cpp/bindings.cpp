// The only file that includes pybind11. Everything that may wait for a lock, an allocator or NCCL
// gives up the GIL first.
#include "harness.h"
#include "nccl/api.h"
#include "nccl/key.h"
#include "process.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace tracehook {

namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

Process& process() {
    Process* const current = Process::current();
    if (current == nullptr) {
        throw std::runtime_error("tracehook is not started in this process");
    }
    return *current;
}

core::EventKind kind_of(const std::string& name) {
    for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(core::EventKind::kCount); ++i) {
        if (name == core::event_name(static_cast<core::EventKind>(i))) {
            return static_cast<core::EventKind>(i);
        }
    }
    throw std::invalid_argument("no event is named " + name);
}

py::bytes peek(core::Ring& ring, std::size_t limit, std::size_t skip) {
    std::vector<core::Event> events(limit);
    std::size_t count = 0;
    {
        const py::gil_scoped_release release;
        count = ring.peek(events, skip);
    }
    return {reinterpret_cast<const char*>(events.data()), count * sizeof(core::Event)};
}

py::list event_table() {
    py::list rows;
    for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(core::EventKind::kCount); ++i) {
        const auto kind = static_cast<core::EventKind>(i);
        rows.append(py::make_tuple(core::event_name(kind), core::event_is_warning(kind)));
    }
    return rows;
}

py::list communicators(const core::Registrar& registrar) {
    py::list rows;
    for (const auto& member : registrar.members()) {
        const core::Identity& who = member->identity();
        py::dict row;
        row["id"] = who.id;
        row["key"] = who.key;
        row["pointer"] = reinterpret_cast<std::uintptr_t>(who.pointer);
        row["device"] = who.device;
        row["rank"] = who.rank;
        row["size"] = who.size;
        row["ready"] = member->was_ready();
        row["failed"] = member->failed();
        row["held"] = member->held();
        row["made"] = member->made();
        row["undone"] = member->undone();
        rows.append(row);
    }
    return rows;
}

py::list segments(const core::Registrar& registrar) {
    py::list rows;
    for (const core::Segment& segment : registrar.segments()) {
        rows.append(py::make_tuple(segment.id, segment.device, segment.address, segment.size));
    }
    return rows;
}

py::dict allocator(const th_allocator_info& info) {
    py::dict row;
    row["name"] = std::string(info.name);
    row["initialized"] = info.initialized != 0;
    row["caching"] = info.caching != 0;
    row["expandable_segments"] = info.expandable_segments != 0;
    return row;
}

void bind_process(py::module_& module) {
    module.def(
        "make_process",
        [](const std::string& ring_path, std::size_t capacity) {
            Process::make(ring_path, capacity);
        },
        py::arg("ring_path"), py::arg("ring_capacity"));
    module.def("ring_error", [] { return process().ring().error(); });
    module.def("interpose", [] { return process().interpose(); }, NoGil());
    module.def(
        "attach",
        [](const std::string& path, const std::string& version) {
            return static_cast<std::uint64_t>(process().attach(path, version));
        },
        NoGil(), py::arg("shim_path"), py::arg("torch_version"));
    module.def("attached", [] { return Process::current() != nullptr && process().attached(); });
    module.def("abandoned",
               [] { return Process::current() != nullptr && process().registrar().abandoned(); });
    module.def("describe_allocator", [] { return allocator(process().describe_allocator()); });
    module.def("shim_version", [] { return process().shim_version(); });
    module.def("check", [] { return process().check(); }, NoGil());
    module.def("check_at_births", [] { process().check_at_births(); });
    module.def(
        "adopt_communicator",
        [](std::uintptr_t pointer, int device, const std::string& name) {
            return process().adopt_communicator(reinterpret_cast<void*>(pointer), device, name);
        },
        NoGil(), py::arg("pointer"), py::arg("device"), py::arg("name"));
    module.def(
        "retire_communicator",
        [](std::uintptr_t pointer) {
            core::Registrar& registrar = process().registrar();
            const bool known = registrar.find(reinterpret_cast<void*>(pointer)) != nullptr;
            registrar.retire(reinterpret_cast<void*>(pointer));
            return known;
        },
        NoGil(), py::arg("pointer"));
    module.def(
        "set_registering", [](bool on) { process().registrar().set_registering(on); }, NoGil());
    module.def("registering", [] { return process().registrar().registering(); });
    module.def("communicators", [] { return communicators(process().registrar()); });
    module.def("segments", [] { return segments(process().registrar()); });
    module.def("totals", [] {
        const auto totals = process().registrar().totals();
        return py::make_tuple(totals.segments, totals.bytes, totals.communicators);
    });
    module.def(
        "push",
        [](const std::string& event, std::uint64_t value, std::uint64_t size) {
            process().push(kind_of(event), value, size);
        },
        py::arg("event"), py::arg("value") = 0, py::arg("size") = 0);
    module.def(
        "peek",
        [](std::size_t limit, std::size_t skip) { return peek(process().ring(), limit, skip); },
        py::arg("limit"), py::arg("skip") = 0);
    module.def("mark_drained", [](std::size_t count) { process().ring().mark_drained(count); });
    module.def("dropped", [] { return process().ring().dropped(); });
    module.def("remove_ring_file", [] { process().ring().remove_file(); });
    // The tests' event source: what the allocator would have said.
    module.def(
        "inject",
        [](const std::string& action, int device, std::uintptr_t address, std::size_t size) {
            core::Registrar& registrar = process().registrar();
            action == "alloc" ? registrar.segment_allocated(device, address, size)
                              : registrar.segment_freed(device, address, size);
        },
        NoGil(), py::arg("action"), py::arg("device"), py::arg("address"), py::arg("size"));
}

void bind_harness(py::module_& module) {
    py::class_<Harness>(module, "Harness", "A registrar with scripted communicators, for tests.")
        .def(py::init<std::size_t>(), py::arg("ring_capacity") = 65536)
        .def(
            "alloc",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size) {
                self.registrar().segment_allocated(device, address, size);
            },
            NoGil())
        .def(
            "free",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size) {
                self.registrar().segment_freed(device, address, size);
            },
            NoGil())
        .def("begin_adoption", [](Harness& self) { self.registrar().begin_adoption(); })
        .def(
            "adopt",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size) {
                self.registrar().adopt_segment(device, address, size);
            },
            NoGil())
        .def("end_adoption", [](Harness& self) { self.registrar().end_adoption(); })
        .def("create", &Harness::create, NoGil(), py::arg("pointer"), py::arg("device") = 0,
             py::arg("parent") = 0)
        .def("collective", &Harness::collective, NoGil(), py::arg("pointer"),
             py::arg("hold_us") = 0)
        .def("retire", &Harness::retire, NoGil())
        .def("kill", &Harness::kill, NoGil())
        .def("poke",
             [](Harness& self, std::uintptr_t pointer) {
                 if (const auto member = self.registrar().find(reinterpret_cast<void*>(pointer))) {
                     member->gate().poke();
                 }
             })
        .def(
            "set_registering", [](Harness& self, bool on) { self.registrar().set_registering(on); },
            NoGil())
        .def("abandon", [](Harness& self) { self.registrar().abandon(); })
        .def("set_in_progress",
             [](Harness& self, std::uintptr_t pointer, bool on) {
                 const std::lock_guard guard(self.script().mutex);
                 self.script().in_progress[pointer] = on;
             })
        .def("fail_after",
             [](Harness& self, std::uintptr_t pointer, int calls) {
                 const std::lock_guard guard(self.script().mutex);
                 self.script().fail_after[pointer] = calls;
             })
        .def("set_delay_us", [](Harness& self, int delay) { self.script().delay_us.store(delay); })
        .def("held", &Harness::held)
        .def("calls",
             [](Harness& self) {
                 py::list rows;
                 const std::lock_guard guard(self.script().mutex);
                 for (const ScriptedCall& call : self.script().calls) {
                     rows.append(py::make_tuple(call.communicator,
                                                call.is_register ? "register" : "deregister",
                                                call.address, call.size, call.result));
                 }
                 return rows;
             })
        .def_property_readonly("violations",
                               [](Harness& self) { return self.script().violations.load(); })
        .def("communicators", [](Harness& self) { return communicators(self.registrar()); })
        .def("segments", [](Harness& self) { return segments(self.registrar()); })
        .def("peek", [](Harness& self, std::size_t limit) { return peek(self.ring(), limit, 0); })
        .def("mark_drained",
             [](Harness& self, std::size_t count) { self.ring().mark_drained(count); })
        .def_property_readonly("dropped", [](Harness& self) { return self.ring().dropped(); });
}

} // namespace

} // namespace tracehook

PYBIND11_MODULE(_core, module) {
    using namespace tracehook;
    module.doc() =
        "tracehook's native core: registrar, ring, interposer. Knows neither torch nor CUDA.";
    module.attr("RECORD_BYTES") = sizeof(core::Event);
    module.def("event_table", &event_table, "(name, is a warning) of each event kind, by number");
    module.def("nccl_version", &nccl::version,
               "NCCL's own number (22809 is 2.28.9); 0 without NCCL");
    module.def("nccl_missing", [] {
        std::string why;
        nccl::api_available(&why);
        return why;
    });
    module.def("key_of_name", &nccl::key_of_name);
    bind_process(module);
    bind_harness(module);
}
