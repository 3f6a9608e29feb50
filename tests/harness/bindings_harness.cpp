// The module `_testing`, which no wheel ships. The harness of tests/unit: a registrar, ring and
// bank of their own, on a communicator that follows a script.
#include "bindings/rows.h"
#include "harness.h"
#include "process/symmetric_memory.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

namespace tracehook::testing {

using namespace bindings;
using process::BoundCommunicator;

namespace {

windows::Compare compare_named(const std::string& name) {
    return name == "where"     ? windows::Compare::kWhere
           : name == "whether" ? windows::Compare::kWhether
                               : windows::Compare::kNothing;
}

// The bank of a harness, and what its collectives would look up.
void bind_harness_memory(py::class_<Harness>& harness) {
    harness.def("open_bank", &Harness::open_bank, py::arg("limit") = 0)
        .def_static("set_out_of_memory", &Harness::set_out_of_memory)
        .def_static("mapped", &Harness::mapped)
        .def(
            "take",
            [](Harness& self, std::uint32_t pool, int device, std::size_t size,
               std::uint32_t owner) {
                return reinterpret_cast<std::uintptr_t>(
                    self.bank().take({pool, owner, device, size}));
            },
            NoGil(), py::arg("pool"), py::arg("device"), py::arg("size"), py::arg("owner") = 0)
        .def(
            "give_back",
            [](Harness& self, std::uintptr_t address) { return self.bank().give_back(address); },
            NoGil())
        .def(
            "release_idle", [](Harness& self) { return self.bank().release_idle(); }, NoGil())
        .def("pool_segments", [](Harness& self) { return self.bank().segments(); })
        .def("last_refusal", [](Harness& self) { return self.bank().last_refusal(); })
        .def("find_communicator",
             [](Harness& self, std::uintptr_t pointer) -> py::object {
                 const registrar::CommunicatorPtr found =
                     self.registrar().find(reinterpret_cast<const void*>(pointer));
                 return found ? py::cast(BoundCommunicator(found)) : py::none();
             })
        .def(
            "create_device_communicator",
            [](Harness&, BoundCommunicator& communicator, int result) {
                windows::of(*communicator).device_communicator_begins();
                windows::of(*communicator).device_communicator_created(result, 0);
            },
            py::arg("communicator"), py::arg("result") = 0)
        .def(
            "destroy_device_communicator",
            [](Harness&, BoundCommunicator& communicator, int result) {
                windows::of(*communicator).device_communicator_destroyed(result, 0);
            },
            py::arg("communicator"), py::arg("result") = 0)
        .def(
            "look",
            [](Harness&, BoundCommunicator& communicator, std::uint32_t operation,
               std::array<std::uintptr_t, 2> address, std::array<std::size_t, 2> size,
               const std::array<std::string, 2>& compare, bool accept, bool pin) {
                const Harness::Buffers buffers{
                    address, size, {compare_named(compare[0]), compare_named(compare[1])}};
                const windows::Windows::Lookup look = [&] {
                    const py::gil_scoped_release without; // it may wait at a fence
                    return Harness::look(*communicator, operation, buffers,
                                         accept ? windows::Windows::Act::kKnown
                                                : windows::Windows::Act::kPeek);
                }();
                if (accept && !look.counted) {
                    windows::of(*communicator).log_first_use(look);
                    Harness::accept(*communicator, look, buffers);
                }
                if (pin) {
                    windows::table_of(*communicator).pin(look);
                }
                const auto place = [](const windows::Place& where) {
                    return py::make_tuple(where.window, where.offset);
                };
                return py::make_tuple(look.known, place(look.use.send), place(look.use.receive),
                                      look.in_window);
            },
            py::arg("communicator"), py::arg("operation"), py::arg("address"), py::arg("size"),
            py::arg("compare") = std::array<std::string, 2>{"where", "where"},
            py::arg("accept") = true, py::arg("pin") = false);
}

void bind_harness(py::module_& module) {
    py::class_<Harness> harness(module, "Harness",
                                "A registrar with scripted communicators, for tests.");
    bind_harness_memory(harness);
    harness
        .def(py::init<std::size_t, int>(), py::arg("ring_capacity") = 65536,
             py::arg("patience_ms") = 0)
        .def(
            "alloc",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size, int pool) {
                self.allocate(device, address, size, static_cast<registrar::PoolKind>(pool));
            },
            NoGil(), py::arg("device"), py::arg("address"), py::arg("size"), py::arg("pool") = 0)
        .def(
            "free",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size) {
                self.free(device, address, size);
            },
            NoGil())
        .def("begin_adoption", [](Harness& self) { self.registrar().begin_adoption(); })
        .def(
            "adopt",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size) {
                self.registrar().adopt_segment(device, address, size);
            },
            NoGil())
        .def(
            "map",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size) {
                self.registrar().range_mapped(device, address, size);
            },
            NoGil())
        .def(
            "unmap",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size) {
                self.registrar().range_unmapped(device, address, size);
            },
            NoGil())
        .def(
            "adopt_range",
            [](Harness& self, int device, std::uintptr_t address, std::size_t size) {
                self.registrar().adopt_range(device, address, size);
            },
            NoGil())
        .def("ranges", [](Harness& self) { return ranges(self.registrar()); })
        .def("end_adoption", [](Harness& self) { self.registrar().end_adoption(); })
        .def("create", &Harness::create, NoGil(), py::arg("pointer"), py::arg("device") = 0,
             py::arg("parent") = 0, py::arg("observed") = false)
        .def(
            "others_register",
            [](Harness& self, std::uintptr_t pointer, std::uintptr_t address, std::size_t size,
               std::uintptr_t handle, int result) {
                self.registrar().observed(
                    self.registrar().find(reinterpret_cast<void*>(pointer)),
                    {address, size, reinterpret_cast<void*>(handle), result, 0, 0});
            },
            NoGil(), py::arg("pointer"), py::arg("address"), py::arg("size"), py::arg("handle"),
            py::arg("result") = 0)
        .def(
            "others_deregister",
            [](Harness& self, std::uintptr_t pointer, std::uintptr_t handle) {
                self.registrar().unobserved(self.registrar().find(reinterpret_cast<void*>(pointer)),
                                            {0, 0, reinterpret_cast<void*>(handle), 0, 0, 0});
            },
            NoGil())
        .def("log_overdue", [](Harness& self) { self.registrar().log_overdue(); })
        .def("collective", &Harness::collective, NoGil(), py::arg("pointer"),
             py::arg("hold_us") = 0)
        .def("enter", &Harness::enter, NoGil())
        .def("leave", &Harness::leave, NoGil())
        .def("by_others", &Harness::by_others, NoGil())
        .def("retire", &Harness::retire, NoGil())
        .def("ended",
             [](Harness& self, std::uintptr_t pointer) {
                 self.registrar().ended(reinterpret_cast<void*>(pointer));
             })
        .def("kill", &Harness::kill, NoGil())
        .def(
            "kill_around",
            [](Harness& self, std::uintptr_t pointer, const py::function& call_of_nccl) {
                const auto ending = [&] {
                    const py::gil_scoped_release released;
                    return self.registrar().kill(reinterpret_cast<void*>(pointer));
                }();
                call_of_nccl();
            },
            "Ends a communicator around a call, as an interposed abort does.")
        .def("poke",
             [](Harness& self, std::uintptr_t pointer) {
                 if (const auto communicator =
                         self.registrar().find(reinterpret_cast<void*>(pointer))) {
                     communicator->gate().poke();
                 }
             })
        .def(
            "set_registering", [](Harness& self, bool on) { self.registrar().set_registering(on); },
            NoGil())
        .def("set_rules",
             [](Harness& self, const std::vector<RuleRow>& rows) {
                 self.registrar().set_rules(rules_of(rows));
             })
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
        .def("communicators", [](Harness& self) { return communicators(self.registrar(), false); })
        .def("segments", [](Harness& self) { return self.registrar().segments(); })
        .def("peek", [](Harness& self, std::size_t limit) { return peek(self.ring(), limit, 0); })
        .def("peek_summed",
             [](Harness& self, std::size_t limit, std::size_t least) {
                 return peek_summed(self.ring(), limit, least);
             })
        .def("mark_drained",
             [](Harness& self, std::size_t count) { self.ring().mark_drained(count); })
        .def_property_readonly("dropped", [](Harness& self) { return self.ring().dropped(); });
}

} // namespace

} // namespace tracehook::testing

PYBIND11_MODULE(_testing, module) {
    module.doc() = "Scripted communicators for tracehook's own tests.";
    pybind11::module_::import("tracehook._core"); // knows the types that the harness hands out
    tracehook::testing::bind_harness(module);
}
