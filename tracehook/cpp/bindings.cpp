// pybind11 is included by this file and bindings_ipc.cpp alone. Everything that may wait for a
// lock, an allocator or NCCL gives up the GIL first.
#include "bindings_ipc.h"
#include "harness.h"
#include "nccl/api.h"
#include "nccl/key.h"
#include "nccl/placement.h"
#include "nccl/pool_memory.h"
#include "process.h"
#include "symmetric.h"

#include <array>
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
        rows.append(py::make_tuple(core::event_name(kind),
                                   core::event_severity(kind) == core::Severity::warning));
    }
    return rows;
}

py::list severities() {
    constexpr const char* kNames[] = {"info", "problem", "warning"};
    py::list rows;
    for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(core::EventKind::kCount); ++i) {
        const auto severity = core::event_severity(static_cast<core::EventKind>(i));
        rows.append(kNames[static_cast<int>(severity)]);
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

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

// Asks Python about a new placement. Called by the thread that issued the collective, usually
// without the GIL.
nccl::Comparison comparison(const py::function& compare) {
    // Never destroyed: threads of torch may still come while the interpreter ends.
    auto* const kept = new py::function(compare);
    return [kept](core::Registrations& member, const core::Windows::Look& look) -> std::string {
        if (Py_IsInitialized() == 0 || is_finalizing()) {
            return "";
        }
        const py::gil_scoped_acquire gil;
        const nccl::Operation& row = nccl::operations()[look.use.operation];
        const auto place = [](const core::Place& where, core::Compare compare) -> py::object {
            if (compare == core::Compare::kNothing) {
                return py::none();
            }
            const bool exact = compare == core::Compare::kWhere;
            return py::make_tuple(where.window, exact ? py::cast(where.offset) : py::none());
        };
        try {
            return (*kept)(member.identity().id, row.name, place(look.use.send, row.compare_send),
                           place(look.use.receive, row.compare_receive))
                .cast<std::string>();
        } catch (const py::error_already_set& failure) {
            return failure.what();
        }
    };
}

nccl::Verify verify_named(const std::string& name) {
    return name == "off"         ? nccl::Verify::kOff
           : name == "every-use" ? nccl::Verify::kEveryUse
                                 : nccl::Verify::kFirstUse;
}

py::object find_member(std::uintptr_t pointer) {
    Process& owner = process();
    const core::Registrar::Member found =
        owner.registrar().find(reinterpret_cast<const void*>(pointer));
    return found ? py::cast(Member(found, owner.bank())) : py::none();
}

py::list windows(const Member& member) {
    py::list rows;
    for (const core::Window& window : member->windows().list()) {
        py::dict row;
        row["ordinal"] = window.ordinal;
        row["segment"] = window.segment;
        row["address"] = window.address;
        row["size"] = window.size;
        row["pinned"] = window.pinned;
        rows.append(row);
    }
    return rows;
}

py::list pool_segments(const core::Bank& bank) {
    py::list rows;
    for (const core::PoolSegment& segment : bank.segments()) {
        rows.append(py::make_tuple(segment.id, segment.pool, segment.owner, segment.device,
                                   segment.address, segment.size, segment.retired,
                                   segment.windows));
    }
    return rows;
}

py::tuple last_refusal(const core::Bank& bank) {
    const core::Bank::Refusal refusal = bank.last_refusal();
    return py::make_tuple(refusal.count, refusal.device, refusal.wanted, refusal.held,
                          refusal.limit);
}

// is_symmetric() asks this for every tensor, and pybind11's way of calling would be most of its
// price.
PyObject* holds(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
    const auto* const member = static_cast<const Member*>(PyCapsule_GetPointer(capsule, nullptr));
    if (member == nullptr || count != 2) {
        PyErr_SetString(PyExc_TypeError, "expected an address and a number of bytes");
        return nullptr;
    }
    const std::size_t address = PyLong_AsSize_t(arguments[0]);
    const std::size_t size = PyLong_AsSize_t(arguments[1]);
    if (PyErr_Occurred() != nullptr) {
        return nullptr;
    }
    return PyBool_FromLong(member->holds(address, size) ? 1 : 0);
}

py::object holder(const Member& member) {
    static PyMethodDef method{"holds",
                              reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&holds)),
                              METH_FASTCALL, nullptr};
    const py::capsule capsule(new Member(member),
                              [](void* kept) { delete static_cast<Member*>(kept); });
    return py::reinterpret_steal<py::object>(PyCFunction_New(&method, capsule.ptr()));
}

void bind_member(py::module_& module) {
    py::class_<Member>(module, "Communicator", "A communicator to register windows with.")
        .def_property_readonly("id", [](const Member& self) { return self->identity().id; })
        .def_property_readonly("key", [](const Member& self) { return self->identity().key; })
        .def_property_readonly("size", [](const Member& self) { return self->identity().size; })
        .def_property_readonly("dead", [](const Member& self) { return self->dead(); })
        .def("holds", &Member::holds)
        .def("holder", &holder)
        .def("missing", &Member::missing)
        .def("windows", &windows)
        .def(
            "register_windows",
            [](Member& self, const std::vector<std::uint64_t>& segments, bool capturing) {
                std::vector<std::pair<int, bool>> outcomes;
                for (const core::Outcome& outcome : self.register_windows(segments, capturing)) {
                    outcomes.emplace_back(outcome.result, outcome.handle != nullptr);
                }
                return outcomes;
            },
            py::arg("segments"), py::arg("capturing") = false, NoGil())
        .def("confirm_windows", &Member::confirm_windows, NoGil())
        .def("drop_windows", &Member::drop_windows, NoGil())
        .def("deregister_windows", &Member::deregister_windows, NoGil())
        .def("log_waiting", [](const Member& self) { self->log_waiting(); })
        .def("digest",
             [](const Member& self) {
                 const core::Windows::Digest digest = self->windows().digest();
                 return std::make_pair(digest.uses, digest.value);
             })
        .def("unpin", [](const Member& self) { self->windows().unpin_all(); })
        .def("log_agreement", [](const Member& self, const std::string& event, std::uint64_t value,
                                 std::uint32_t extra, std::uint64_t duration_ns) {
            self->log_agreement(kind_of(event), value, extra, duration_ns);
        });
}

void bind_scopes(py::module_& module) {
    py::class_<Pool, std::shared_ptr<Pool>>(module, "Pool", "Directs allocations to a torch pool.")
        .def(py::init([](std::uint32_t number, int device, Pool::TorchId id) {
            return std::make_shared<Pool>(process().shim(), number, device, id);
        }))
        .def("replace", &Pool::replace, NoGil());
    py::class_<SymmetricScope>(module, "Scope", "Follows what is allocated inside it.")
        .def(py::init(
            [](std::shared_ptr<Pool> eager, std::shared_ptr<Pool> graph, std::uint32_t owner) {
                return std::make_unique<SymmetricScope>(std::move(eager), std::move(graph), owner,
                                                        process().shim());
            }))
        .def("set_members", &SymmetricScope::set_members)
        .def("enter", &SymmetricScope::enter)
        .def("leave", [](SymmetricScope& self) -> py::object {
            const std::vector<std::uint64_t> wanted = self.leave();
            return wanted.empty() ? py::none() : py::cast(wanted);
        });
}

void bind_symmetric(py::module_& module) {
    bind_member(module);
    bind_scopes(module);
    module.def("find_communicator", &find_member);
    // A scope of no pool: its allocations are ordinary ones, also inside of other scopes.
    module.def("enter_outside", [](bool) { core::Scopes::enter({}); });
    module.def("leave_outside", [] {
        const core::Scope* const scope = core::Scopes::current();
        if (scope == nullptr || scope->source != nullptr) {
            throw std::logic_error("scopes of symmetric memory must end in the reverse order of "
                                   "their beginning, on the thread that began them");
        }
        core::Scopes::leave();
    });
    module.def("open_bank", [](std::size_t limit) { nccl::open_bank(process().bank(), limit); });
    module.def(
        "segment_functions",
        [] {
            return std::make_pair(reinterpret_cast<std::uintptr_t>(&nccl::allocate_segment),
                                  reinterpret_cast<std::uintptr_t>(&nccl::free_segment));
        },
        "addresses of the functions for torch's pluggable allocator: allocate, free");
    module.def("pool_segments", [] { return pool_segments(process().bank()); });
    module.def("pool_segment_at", [](std::uintptr_t address) {
        const auto segment = process().bank().find(address);
        return segment ? segment->id : 0;
    });
    // While they are held they are not given back to the driver: from before the ranks agree on
    // them until they are registered. False, and none is held, if one is gone.
    module.def("hold_segments", [](const std::vector<std::uint64_t>& segments) {
        return process().bank().windows_made(segments);
    });
    module.def("let_go_of_segments", [](const std::vector<std::uint64_t>& segments) {
        for (const std::uint64_t segment : segments) {
            process().bank().window_ended(segment);
        }
    });
    module.def("release_idle", [] { return process().bank().release_idle(); }, NoGil());
    module.def("last_refusal", [] { return last_refusal(process().bank()); });
    module.def("set_verification", [](const std::string& verify, const py::function& compare) {
        nccl::set_verification(verify_named(verify), comparison(compare));
    });
    module.def(
        "operations",
        [] {
            static constexpr std::array<const char*, 3> kCompare = {"nothing", "whether", "where"};
            const auto name = [](core::Compare compare) {
                return kCompare.at(static_cast<std::size_t>(compare));
            };
            py::list rows;
            for (const nccl::Operation& row : nccl::operations()) {
                rows.append(
                    py::make_tuple(row.name, name(row.compare_send), name(row.compare_receive)));
            }
            return rows;
        },
        "(name, what is compared of the send buffer's place, of the receive buffer's) by number");
    module.def("capturing", [](int device) { return process().shim().capturing(device); });
}

core::Compare compare_named(const std::string& name) {
    return name == "where"     ? core::Compare::kWhere
           : name == "whether" ? core::Compare::kWhether
                               : core::Compare::kNothing;
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
        .def("pool_segments", [](Harness& self) { return pool_segments(self.bank()); })
        .def("last_refusal", [](Harness& self) { return last_refusal(self.bank()); })
        .def("find_communicator",
             [](Harness& self, std::uintptr_t pointer) -> py::object {
                 const core::Registrar::Member found =
                     self.registrar().find(reinterpret_cast<const void*>(pointer));
                 return found ? py::cast(Member(found, self.bank())) : py::none();
             })
        .def(
            "look",
            [](Harness&, Member& member, std::uint32_t operation,
               std::array<std::uintptr_t, 2> address, std::array<std::size_t, 2> size,
               const std::array<std::string, 2>& compare, bool accept, bool pin) {
                const core::Windows::Look look = Harness::look(
                    *member, operation,
                    {address, size, {compare_named(compare[0]), compare_named(compare[1])}});
                if (accept && !look.known) {
                    member->log_placement(core::EventKind::kPlacementFirstUse, look);
                    member->windows().accept(look);
                }
                if (pin) {
                    member->windows().pin(look);
                }
                const auto place = [](const core::Place& where) {
                    return py::make_tuple(where.window, where.offset);
                };
                return py::make_tuple(look.known, place(look.use.send), place(look.use.receive),
                                      look.unpinned);
            },
            py::arg("member"), py::arg("operation"), py::arg("address"), py::arg("size"),
            py::arg("compare") = std::array<std::string, 2>{"where", "where"},
            py::arg("accept") = true, py::arg("pin") = false);
}

void bind_harness(py::module_& module) {
    py::class_<Harness> harness(module, "Harness",
                                "A registrar with scripted communicators, for tests.");
    bind_harness_memory(harness);
    harness.def(py::init<std::size_t>(), py::arg("ring_capacity") = 65536)
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
    module.def("severities", &severities,
               "info, problem or warning, of each event kind, by number");
    module.def("nccl_version", &nccl::version,
               "NCCL's own number (22809 is 2.28.9); 0 without NCCL");
    module.def("nccl_missing", [] {
        std::string why;
        nccl::api_available(&why);
        return why;
    });
    module.def("key_of_name", &nccl::key_of_name);
    bind_process(module);
    bind_symmetric(module);
    bind_harness(module);
    bind_ipc(module);
}
