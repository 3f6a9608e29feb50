// Symmetric memory: communicators as communicators of a scope, pools, the bank, the check of
// placements.
#include "bindings/bindings.h"
#include "nccl/coll_config.h"
#include "nccl/group.h"
#include "nccl/paying.h"
#include "nccl/placement.h"
#include "nccl/pool_memory.h"
#include "nccl/suspension.h"
#include "process/symmetric_memory.h"

#include <chrono>
#include <memory>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <utility>
#include <vector>

namespace tracehook::bindings {

using process::BoundCommunicator;
using process::PoolScope;
using torch::Pool;

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

namespace {

py::object place(const windows::Place& where, windows::Compare compare) {
    if (compare == windows::Compare::kNothing) {
        return py::none();
    }
    const bool exact = compare == windows::Compare::kWhere;
    return py::make_tuple(where.window, exact ? py::cast(where.offset) : py::none());
}

// Operation, place of the send buffer, place of the receive buffer, settings of a configuration, as
// the ranks compare them.
py::tuple described(const windows::Use& use) {
    const nccl::Operation& row = nccl::operations()[use.operation];
    return py::make_tuple(row.name, place(use.send, row.compare_send),
                          place(use.receive, row.compare_receive), nccl::settings_of(use.config));
}

py::object past(const BoundCommunicator& communicator, std::uint64_t call) {
    const auto use = communicator.table().past(call);
    return use ? py::object(described(*use)) : py::none();
}

// Asks Python about a new placement. Called by the thread that issued the collective, usually
// without the GIL.
nccl::Comparison comparison(const py::function& compare) {
    // Never destroyed: threads of torch may still come while the interpreter ends.
    auto* const kept = new py::function(compare);
    return [kept](registrar::Communicator& communicator,
                  const windows::Windows::Lookup& look) -> std::string {
        if (Py_IsInitialized() == 0 || is_finalizing()) {
            return "";
        }
        const py::gil_scoped_acquire gil;
        try {
            const py::tuple how = py::make_tuple(look.bytes, look.type, look.reduction, look.root);
            return (*kept)(communicator.identity().id, look.call, how, *described(look.use))
                .cast<std::string>();
        } catch (const py::error_already_set& failure) {
            raise_later(failure);
            return failure.what();
        }
    };
}

// Brings the ranks of a communicator together in Python, as a window would.
void introduce(const registrar::CommunicatorPtr& communicator) {
    if (Py_IsInitialized() == 0 || is_finalizing() || !process().registrar().registering()) {
        return;
    }
    const py::gil_scoped_acquire gil;
    try {
        py::module_::import("tracehook.symmetric_memory.guard")
            .attr("introduce")(BoundCommunicator(communicator));
    } catch (const py::error_already_set& failure) {
        raise_later(failure);
        throw std::runtime_error(std::string("tracehook: ") + failure.what());
    }
}

// Asks the ranks of a communicator in Python whether all run calls on registered memory.
bool agree_on_calls(const registrar::CommunicatorPtr& communicator) {
    if (Py_IsInitialized() == 0 || is_finalizing()) {
        return false;
    }
    const py::gil_scoped_acquire gil;
    try {
        return py::module_::import("tracehook.symmetric_memory.registered_calls")
            .attr("agree")(BoundCommunicator(communicator))
            .cast<bool>();
    } catch (py::error_already_set& failure) { // this call goes on without
        if (!raise_later(failure)) {
            failure.restore();
            PyErr_WriteUnraisable(nullptr);
        }
        return false;
    }
}

// A call of NCCL that is made with the GIL (ctypes.PyDLL, a binding that keeps it) may wait for a
// thread that needs it.
constexpr windows::LongWait kWithoutGil{
    []() noexcept -> void* {
        const bool has_gil = Py_IsInitialized() != 0 && !is_finalizing() &&
                             PyGILState_GetThisThreadState() != nullptr && PyGILState_Check() == 1;
        return has_gil ? PyEval_SaveThread() : nullptr;
    },
    [](void* state) noexcept {
        while (is_finalizing()) {
            pause(); // to take the GIL would end this thread in the midst of the call
        }
        PyEval_RestoreThread(static_cast<PyThreadState*>(state));
    }};

// Segments that are not given back to the driver while this lives: from before the ranks agree on
// them until they are registered. No line of Python need come to let_go(): the handler of a signal
// may raise before it.
class HeldSegments {
  public:
    // Null, and none is held, if one is gone.
    static std::unique_ptr<HeldSegments> of(std::vector<std::uint64_t> segments) {
        windows::Bank& bank = process().bank();
        return bank.windows_made(segments)
                   ? std::make_unique<HeldSegments>(bank, std::move(segments))
                   : nullptr;
    }

    HeldSegments(windows::Bank& bank, std::vector<std::uint64_t> segments)
        : bank_(bank), segments_(std::move(segments)) {}
    HeldSegments(const HeldSegments&) = delete;
    HeldSegments& operator=(const HeldSegments&) = delete;
    HeldSegments(HeldSegments&&) = delete;
    HeldSegments& operator=(HeldSegments&&) = delete;
    ~HeldSegments() { let_go(); }

    void let_go() noexcept {
        for (const std::uint64_t segment : std::exchange(segments_, {})) {
            bank_.window_ended(segment);
        }
    }

  private:
    windows::Bank& bank_; // lives as long as the process
    std::vector<std::uint64_t> segments_;
};

py::object find_member(std::uintptr_t pointer) {
    const registrar::CommunicatorPtr found =
        process().registrar().find(reinterpret_cast<const void*>(pointer));
    return found ? py::cast(BoundCommunicator(found)) : py::none();
}

py::list windows(const BoundCommunicator& communicator) {
    py::list rows;
    const bool held_by_kernels = communicator.windows().device_communicators() != 0;
    for (const windows::Window& window : communicator.table().list()) {
        py::dict row;
        row["ordinal"] = window.ordinal;
        row["segment"] = window.segment;
        row["address"] = window.address;
        row["size"] = window.size;
        row["pinned"] = window.pinned || held_by_kernels;
        rows.append(row);
    }
    return rows;
}

// is_symmetric() asks this for every tensor, and pybind11's way of calling would be most of its
// price.
PyObject* holds(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
    const auto* const communicator =
        static_cast<const BoundCommunicator*>(PyCapsule_GetPointer(capsule, nullptr));
    if (communicator == nullptr || count != 2) {
        PyErr_SetString(PyExc_TypeError, "expected an address and a number of bytes");
        return nullptr;
    }
    const std::size_t address = PyLong_AsSize_t(arguments[0]);
    const std::size_t size = PyLong_AsSize_t(arguments[1]);
    if (PyErr_Occurred() != nullptr) {
        return nullptr;
    }
    return PyBool_FromLong(communicator->holds(address, size) ? 1 : 0);
}

py::object holder(const BoundCommunicator& communicator) {
    static PyMethodDef method{"holds",
                              reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&holds)),
                              METH_FASTCALL, nullptr};
    const py::capsule capsule(new BoundCommunicator(communicator),
                              [](void* kept) { delete static_cast<BoundCommunicator*>(kept); });
    return py::reinterpret_steal<py::object>(PyCFunction_New(&method, capsule.ptr()));
}

void bind_member(py::module_& module) {
    py::enum_<windows::Windows::Fence>(module, "Fence", "Whose fence it is.")
        .value("REGISTRATION", windows::Windows::Fence::kRegistration)
        .value("VERIFICATION", windows::Windows::Fence::kVerification);
    py::class_<BoundCommunicator>(module, "Communicator",
                                  "A communicator to register windows with.")
        .def_property_readonly("id",
                               [](const BoundCommunicator& self) { return self->identity().id; })
        .def_property_readonly("key",
                               [](const BoundCommunicator& self) { return self->identity().key; })
        .def_property_readonly("rank",
                               [](const BoundCommunicator& self) { return self->identity().rank; })
        .def_property_readonly(
            "device", [](const BoundCommunicator& self) { return self->identity().device; })
        .def_property_readonly("size",
                               [](const BoundCommunicator& self) { return self->identity().size; })
        .def_property_readonly("dead", [](const BoundCommunicator& self) { return self->dead(); })
        .def_property_readonly("suspended",
                               [](const BoundCommunicator& self) { return self->rests(); })
        .def(
            "suspend",
            [](const BoundCommunicator& self) {
                const int result = nccl::suspend(self.shared());
                const auto memory = self->last_memory();
                return std::make_pair(result, memory ? memory->suspendable : 0);
            },
            NoGil(), "NCCL's result, and the bytes that it gave back if that is 0")
        .def(
            "resume", [](const BoundCommunicator& self) { return nccl::resume(self.shared()); },
            NoGil())
        .def_property_readonly(
            "device_communicators",
            [](const BoundCommunicator& self) { return self.windows().device_communicators(); })
        .def("surrounded_by",
             [](const BoundCommunicator& self, std::uint64_t packed) {
                 if (events::CallSlot* const calls = self->calls(); calls != nullptr) {
                     calls->surrounded_by(packed);
                 }
             })
        .def("holds", &BoundCommunicator::holds)
        .def("holder", &holder)
        .def("missing", &BoundCommunicator::missing)
        .def("windows", &windows)
        .def(
            "register_windows",
            [](BoundCommunicator& self, const std::vector<std::uint64_t>& segments,
               bool capturing) {
                std::vector<std::pair<int, bool>> outcomes;
                for (const registrar::Outcome& outcome :
                     self.register_windows(segments, capturing)) {
                    outcomes.emplace_back(outcome.result, outcome.handle != nullptr);
                }
                return outcomes;
            },
            py::arg("segments"), py::arg("capturing") = false, NoGil())
        .def("confirm_windows", &BoundCommunicator::confirm_windows, NoGil())
        .def(
            "raise_fence",
            [](const BoundCommunicator& self, windows::Windows::Fence fence,
               std::optional<double> seconds) {
                const auto most = std::chrono::duration<double>(seconds.value_or(0.0));
                return seconds
                           ? self.table().raise_fence(
                                 fence, std::chrono::ceil<windows::Windows::Clock::duration>(most))
                           : self.table().raise_fence(fence);
            },
            py::arg("fence"), py::arg("seconds") = py::none(), NoGil())
        .def(
            "lower_fence",
            [](const BoundCommunicator& self, windows::Windows::Fence fence,
               std::optional<std::uint64_t> next) { self.table().lower_fence(fence, next); },
            py::arg("fence"), py::arg("next") = py::none())
        .def(
            "wait_for_calls",
            [](BoundCommunicator& self, std::uint64_t next, std::size_t own, double seconds) {
                return self.wait_for_calls(next, own, std::chrono::duration<double>(seconds));
            },
            NoGil())
        .def(
            "in_flight",
            [](const BoundCommunicator& self, std::size_t own) {
                return self.windows().in_flight(own);
            },
            NoGil())
        .def_property_readonly(
            "own_flights",
            [](const BoundCommunicator& self) { return nccl::ThreadGroup::mine().flights(*self); })
        .def_property_readonly("calls",
                               [](const BoundCommunicator& self) { return self.table().calls(); })
        .def_property_readonly(
            "calls_begun", [](const BoundCommunicator& self) { return self.table().calls_begun(); })
        .def("note_caller", [](const BoundCommunicator& self) { self.table().note_caller(); })
        .def_property_readonly(
            "several_callers",
            [](const BoundCommunicator& self) { return self.table().several_callers(); })
        .def_property_readonly(
            "adopted", [](const BoundCommunicator& self) { return self->identity().adopted; })
        .def("past", &past)
        .def("digests",
             [](const BoundCommunicator& self, std::uint64_t first, std::uint64_t last) {
                 auto found = self.table().digests(first, last);
                 return std::make_pair(found.first, std::move(found.values));
             })
        .def(
            "refuse",
            [](const BoundCommunicator& self, const std::string& why, std::uint64_t from) {
                self.windows().refuse(why, from);
            },
            py::arg("why"), py::arg("from_call") = 0)
        .def("drop_windows", &BoundCommunicator::drop_windows, NoGil())
        .def(
            "count_window_of_others",
            [](const BoundCommunicator& self, std::uintptr_t handle) {
                self.windows().count_window_of_others(reinterpret_cast<const void*>(handle));
            },
            NoGil())
        .def("undo_window_of_others", &BoundCommunicator::undo_window_of_others, NoGil())
        .def("deregister_windows", &BoundCommunicator::deregister_windows, NoGil())
        .def("log_waiting", [](const BoundCommunicator& self) { self.windows().log_waiting(); })
        .def("digest",
             [](const BoundCommunicator& self) {
                 const windows::Windows::Digest digest = self.table().digest();
                 return std::make_pair(digest.uses, digest.value);
             })
        .def("unpin", [](const BoundCommunicator& self) { self.table().unpin_all(); })
        .def("log", [](const BoundCommunicator& self, const std::string& event,
                       const py::kwargs& fields) { self->log(event_of(event, fields)); });
}

// The scope is entered: nothing may be raised.
void say_unsettled(int device) {
    const std::string text =
        "device " + std::to_string(device) + " still uses memory of a symmetric pool that the " +
        "program freed more than 10 s ago (record_stream, a send). This scope does without it, " +
        "so its tensors may lie elsewhere than on other ranks. Let the other rank receive before " +
        "the scope, or free the tensor after it on all ranks";
    try {
        py::module_::import("tracehook.log.stderr").attr("warn")(text);
    } catch (const py::error_already_set& failure) {
        raise_later(failure);
    }
}

// Of our pools: how many segments peers have mapped. With the GIL.
int lent_segments = 0;

// Peers of closed groups unmap in the background, at another moment for each rank. The places of
// tensors must not depend on it.
void wait_for_peers(int device) {
    if (windows::ScopeStack::in_scope_on(device) || process().hook_library().capturing(device)) {
        return;
    }
    try {
        py::module_::import("tracehook.ipc.tables")
            .attr("EXPORTS")
            .attr("wait_for_closed_groups")(device);
    } catch (const py::error_already_set& failure) {
        raise_later(failure);
    }
}

void bind_scopes(py::module_& module) {
    module.def("count_lent_segments", [](int change) { lent_segments += change; });
    py::class_<Pool, std::shared_ptr<Pool>>(module, "Pool", "Directs allocations to a torch pool.")
        .def(py::init([](std::uint32_t number, int device, std::function<Pool::TorchId()> make) {
            return std::make_shared<Pool>(process().hook_library(), number, device,
                                          std::move(make));
        }))
        .def("replace_idle", &Pool::replace_idle)
        .def(
            "open",
            [](const Pool& self) {
                std::vector<std::tuple<std::uint32_t, pid_t, int, double>> rows;
                for (const Pool::Open& open : self.open()) {
                    const std::chrono::duration<double> age = Pool::Clock::now() - open.since;
                    rows.emplace_back(open.owner, open.thread, open.depth, age.count());
                }
                return rows;
            },
            "(owner, thread, depth, seconds) of each thread that is in a scope");
    py::class_<PoolScope>(module, "PoolScope", "Follows what is allocated inside it.")
        .def(py::init(
            [](std::shared_ptr<Pool> eager, std::shared_ptr<Pool> graph, std::uint32_t owner) {
                return std::make_unique<PoolScope>(std::move(eager), std::move(graph), owner,
                                                   process().hook_library(),
                                                   process().pending_blocks());
            }))
        .def("set_communicators", &PoolScope::set_communicators)
        .def("enter",
             [](PoolScope& self, bool graph) {
                 if (lent_segments != 0) {
                     wait_for_peers(self.device());
                 }
                 bool settled = false;
                 {
                     const py::gil_scoped_release without;
                     settled = self.enter(graph);
                 }
                 if (!settled) {
                     say_unsettled(self.device());
                 }
             })
        .def("ends", &PoolScope::ends)
        // Between it and enter() the thread is outside, but for the other ranks the scope goes on.
        .def(
            "pause", [](PoolScope& self) { self.leave(); }, NoGil())
        .def("leave", [](PoolScope& self) -> py::object {
            self.count_end();
            std::vector<std::uint64_t> touched;
            {
                const py::gil_scoped_release without;
                touched = self.leave();
            }
            if (touched.empty()) {
                return py::none();
            }
            const std::vector<std::uint64_t> wanted = self.without_window(touched);
            return wanted.empty() ? py::none() : py::cast(wanted);
        });
}

} // namespace

void bind_symmetric(py::module_& module) {
    bind_member(module);
    bind_scopes(module);
    module.def("find_communicator", &find_member);
    module.attr("RENUMBERED") = windows::Windows::kRenumbered;
    // A scope of no pool: its allocations are ordinary ones, also inside of other scopes.
    module.def("enter_outside", [](bool) { windows::ScopeStack::enter({}); });
    module.def("leave_outside", [] {
        const windows::ScopeFrame* const scope = windows::ScopeStack::current();
        if (scope == nullptr || scope->source != nullptr) {
            windows::ScopeStack::take_out(
                [](const windows::ScopeFrame& frame) { return frame.source == nullptr; });
            throw std::logic_error(process::kWrongEnd);
        }
        windows::ScopeStack::leave();
    });
    module.def(
        "in_scope", [] { return windows::ScopeStack::in_scope(); },
        "whether this thread is in a scope, innermost or not");
    module.def(
        "quiet", [](int device) { return process().hook_library().quiet(device); }, NoGil(),
        "whether no pool of torch is begun on the device and no graph is captured; waits for the "
        "allocator's lock");
    module.def(
        "drop_replaced_pools",
        [](int device) { Pool::drop_replaced(process().hook_library(), device); }, NoGil());
    module.def(
        "empty_replaced_pools",
        [](int device) {
            Pool::empty_replaced(process().hook_library(), process().bank(), device);
        },
        NoGil());
    // At exit and in a forked child the end of a torch.cuda.MemPool would call CUDA, and beside a
    // scope or a capture it ends the process. So those that tracehook makes never end, and their
    // memory is given back when they are given up.
    module.def("keep_for_ever", [](const py::object& pool) { pool.inc_ref(); });
    module.def(
        "open_bank",
        [](std::size_t limit) -> py::object {
            const auto refused = nccl::open_bank(process().bank(), limit);
            return refused ? py::make_tuple(refused->reason, refused->text)
                           : py::object(py::none());
        },
        "(reason, text) if this process cannot have one");
    module.def(
        "segment_functions",
        [] {
            return std::make_pair(reinterpret_cast<std::uintptr_t>(&nccl::allocate_segment),
                                  reinterpret_cast<std::uintptr_t>(&nccl::free_segment));
        },
        "addresses of the functions for torch's pluggable allocator: allocate, free");
    module.def("pool_segments", [] { return process().bank().segments(); });
    module.def("pool_segment_at", [](std::uintptr_t address) {
        const auto segment = process().bank().find(address);
        return segment ? segment->id : 0;
    });
    py::class_<HeldSegments>(module, "HeldSegments").def("let_go", &HeldSegments::let_go);
    module.def("hold_segments", &HeldSegments::of);
    module.def("release_idle", [] { return process().bank().release_idle(); }, NoGil());
    module.def("can_suspend", &nccl::can_suspend);
    module.def("last_refusal", [] { return process().bank().last_refusal(); });
    nccl::set_introduction(&introduce);
    windows::set_long_wait(&kWithoutGil);
    nccl::set_call_agreement(&agree_on_calls);
    module.def("set_verification", [](bool is_on, const py::function& compare) {
        nccl::set_verification(is_on ? comparison(compare) : nccl::Comparison());
    });
    module.def("capturing", [](int device) { return process().hook_library().capturing(device); });
    module.def("in_nccl_group", [] { return nccl::ThreadGroup::mine().open(); });
}

} // namespace tracehook::bindings
