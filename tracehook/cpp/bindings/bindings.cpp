// The module `_core`: the process, the versions of NCCL, and what all files of it share.
#include "bindings/bindings.h"

#include "nccl/api.h"
#include "nccl/birth.h"
#include "nccl/interpose.h"
#include "nccl/key.h"
#include "nccl/paying.h"
#include "nccl/registration_calls.h"
#include "process/last_signal.h"
#include "torch/segment_source.h"

#include <pybind11/stl.h>

namespace tracehook::bindings {

process::Process& process() {
    process::Process* const current = process::Process::current();
    if (current == nullptr) {
        throw std::runtime_error("tracehook is not started in this process");
    }
    return *current;
}

namespace {

py::dict allocator(const th_allocator_info& info) {
    py::dict row;
    row["name"] = std::string(info.name);
    row["initialized"] = info.initialized != 0;
    row["caching"] = info.caching != 0;
    row["expandable_segments"] = info.expandable_segments != 0;
    return row;
}

// exit() of C while the interpreter lives, as where a program embeds Python and does not finalize
// it: no exit handler of Python's runs. Once for each process; a forked child has no ring.
void note_exits() {
    static const int registered = on_exit(
        [](int status, void*) {
            process::Process* const process = process::Process::current();
            if (process != nullptr && Py_IsInitialized() != 0 &&
                !process->registrar().abandoned()) {
                process->ring().push(
                    events::make_event(events::row::PythonExit{.status = status & 0xFF}));
            }
        },
        nullptr);
    static_cast<void>(registered);
}

using Numbers = std::array<int, registrar::kMemoryKinds>;

nccl::Effects effects(const Numbers& numbers) {
    nccl::Effects found{};
    for (std::size_t i = 0; i < found.size(); ++i) {
        found[i] = static_cast<registrar::Effect>(numbers[i]);
    }
    return found;
}

void bind_rows(py::module_& module) {
    using registrar::Segment;
    py::class_<Segment>(module, "Segment")
        .def_readonly("id", &Segment::id)
        .def_readonly("device", &Segment::device)
        .def_readonly("address", &Segment::address)
        .def_readonly("size", &Segment::size)
        .def_property_readonly("memory",
                               [](const Segment& self) { return static_cast<int>(self.memory); })
        .def_property_readonly("pool",
                               [](const Segment& self) { return static_cast<int>(self.pool); })
        .def_readonly("left_out", &Segment::left_out);
    using registrar::Registrar;
    py::class_<Registrar::Totals>(module, "Totals")
        .def_readonly("segments", &Registrar::Totals::segments)
        .def_readonly("bytes", &Registrar::Totals::bytes)
        .def_readonly("communicators", &Registrar::Totals::communicators);
    py::class_<torch::SourceTold>(module, "SegmentSource")
        .def_readonly("replaced", &torch::SourceTold::replaced)
        .def_readonly("segments", &torch::SourceTold::segments)
        .def_readonly("bytes", &torch::SourceTold::bytes)
        .def_readonly("refused", &torch::SourceTold::refused);
    using windows::Bank;
    py::class_<Bank::Refusal>(module, "Refusal")
        .def_readonly("count", &Bank::Refusal::count)
        .def_readonly("device", &Bank::Refusal::device)
        .def_readonly("wanted", &Bank::Refusal::wanted)
        .def_readonly("held", &Bank::Refusal::held)
        .def_readonly("limit", &Bank::Refusal::limit);
    using windows::PoolSegment;
    py::class_<PoolSegment>(module, "PoolSegment")
        .def_readonly("id", &PoolSegment::id)
        .def_readonly("pool", &PoolSegment::pool)
        .def_readonly("owner", &PoolSegment::owner)
        .def_readonly("device", &PoolSegment::device)
        .def_readonly("address", &PoolSegment::address)
        .def_readonly("size", &PoolSegment::size)
        .def_readonly("retired", &PoolSegment::retired)
        .def_readonly("windows", &PoolSegment::windows);
}

// Which segments are registered, what that can do, and where their memory comes from.
void bind_registration(py::module_& module) {
    module.def(
        "set_host",
        [](int most_ranks, bool every_segment) { nccl::set_host(most_ranks, every_segment); },
        py::arg("most_ranks"), py::arg("every_segment"));
    module.def(
        "set_effects",
        [](const Numbers& on_one_host, const Numbers& across) {
            nccl::set_effects(effects(on_one_host), effects(across));
        },
        py::arg("on_one_host"), py::arg("across"));
    module.def(
        "set_threshold",
        [](int call, std::size_t eager, std::size_t captured) {
            nccl::set_threshold(static_cast<nccl::PayingCall>(call), eager, captured);
        },
        py::arg("call"), py::arg("eager"), py::arg("captured"),
        "From how many bytes on all_gather (0), all_to_all (1), or a send or receive (2) runs on "
        "registered memory");
    module.def(
        "replace_segment_source",
        [](bool virtual_memory) {
            return torch::replace_segment_source(process().registrar(), virtual_memory);
        },
        NoGil(), py::arg("virtual_memory"));
    module.def("segment_source", &torch::segment_source);
    module.def("segment_at",
               [](std::uintptr_t address) { return process().registrar().segment_at(address); });
}

void bind_process(py::module_& module) {
    module.def(
        "make_process",
        [](const std::string& ring_path, std::size_t capacity) {
            process::Process::make(ring_path, capacity);
        },
        py::arg("ring_path"), py::arg("ring_capacity"));
    module.def("ring_error", [] { // may hold a path
        const std::string& error = process().ring().error();
        return py::reinterpret_steal<py::str>(
            PyUnicode_DecodeFSDefaultAndSize(error.data(), static_cast<Py_ssize_t>(error.size())));
    });
    module.def("interpose", [] { return process().interpose(); }, NoGil());
    module.def(
        "attach",
        [](const std::string& path, const std::string& version) {
            return static_cast<std::uint64_t>(process().attach(path, version));
        },
        NoGil(), py::arg("library_path"), py::arg("torch_version"));
    module.def("attached",
               [] { return process::Process::current() != nullptr && process().attached(); });
    module.def("abandoned", [] {
        return process::Process::current() != nullptr && process().registrar().abandoned();
    });
    module.def("describe_allocator", [] { return allocator(process().describe_allocator()); });
    module.def("hook_library_version", [] { return process().hook_library_version(); });
    module.def("check", [] { return process().check(); }, NoGil());
    module.def("check_at_births", [] { process().check_at_births(); });
    module.def(
        "adopt_communicator",
        [](std::uintptr_t pointer, int device, const std::string& name, bool registers_itself) {
            return process().adopt_communicator(reinterpret_cast<void*>(pointer), device, name,
                                                registers_itself);
        },
        NoGil(), py::arg("pointer"), py::arg("device"), py::arg("name"),
        py::arg("registers_itself") = false);
    module.def("set_local_mode",
               [](int mode) { nccl::set_local_mode(static_cast<nccl::LocalMode>(mode)); });
    module.def(
        "set_rules",
        [](const std::vector<RuleRow>& rows) { process().registrar().set_rules(rules_of(rows)); },
        py::arg("rows"));
    module.def("log_overdue", [] { process().registrar().log_overdue(); }, NoGil());
    module.def(
        "retire_communicator",
        [](std::uintptr_t pointer) {
            registrar::Registrar& registrar = process().registrar();
            const bool known = registrar.find(reinterpret_cast<void*>(pointer)) != nullptr;
            registrar.retire(reinterpret_cast<void*>(pointer));
            return known;
        },
        NoGil(), py::arg("pointer"));
    module.def("set_registering", [](bool on) { process().set_registering(on); }, NoGil());
    module.def("registering", [] { return process().registrar().registering(); });
    module.def(
        "communicators", [](bool look) { return communicators(process().registrar(), look); },
        py::arg("look") = false);
    module.def("segments", [] { return process().registrar().segments(); });
    module.def("segments_asleep", [] { return process().registrar().segments_asleep(); });
    module.def(
        "range_at",
        [](std::uintptr_t address) -> py::object {
            const auto range = process().registrar().range_at(address);
            return range ? py::make_tuple(range->address, range->size) : py::object(py::none());
        },
        py::arg("address"),
        "(address, bytes) mapped in one piece of an expandable segment, or None");
    module.def("mapped", [] { return ranges(process().registrar()); });
    module.def("totals", [] { return process().registrar().totals(); });
    module.def(
        "push",
        [](const std::string& event, const py::kwargs& fields) {
            process().ring().push(event_of(event, fields));
        },
        py::arg("event"), "With every member of the event's row, and any of the head");
    module.def(
        "peek",
        [](std::size_t limit, std::size_t skip) { return peek(process().ring(), limit, skip); },
        py::arg("limit"), py::arg("skip") = 0);
    module.def(
        "peek_summed",
        [](std::size_t limit, std::size_t least) {
            return peek_summed(process().ring(), limit, least);
        },
        py::arg("limit"), py::arg("least"));
    module.def("note_signals", &process::note_signals);
    module.def("note_exits", &note_exits);
    module.def(
        "take_calls", [](bool live) { return unlogged_calls(process().ring(), live); },
        py::arg("live") = false);
    module.def(
        "tallied", [] { return tallied(process().ring()); },
        "Rows of what collectives there were: see tracehook.nccl.counts");
    module.def("mark_drained", [](std::size_t count) { process().ring().mark_drained(count); });
    module.def("let_go", [](std::size_t count) { process().ring().let_go(count); });
    module.def("dropped", [] { return process().ring().dropped(); });
    module.def("leave_words", [](const py::bytes& words) {
        process().ring().leave_words(std::string_view(words));
    });
    module.def("remove_ring_file", [] { process().ring().remove_file(); });
    module.def("stop_log", [](int error) { process().ring().stop_log(error); });
    module.def("end_stopped_log", [] { process().ring().end_stopped_log(); });
    // The tests' event source: what the allocator would have said.
    module.def(
        "inject",
        [](const std::string& action, int device, std::uintptr_t address, std::size_t size) {
            registrar::Registrar& registrar = process().registrar();
            action == "alloc" ? registrar.segment_allocated(device, address, size)
                              : registrar.segment_freed(device, address, size);
        },
        NoGil(), py::arg("action"), py::arg("device"), py::arg("address"), py::arg("size"));
}

} // namespace

} // namespace tracehook::bindings

PYBIND11_MODULE(_core, module) {
    using namespace tracehook;
    using namespace bindings;
    module.doc() =
        "tracehook's native core: registrar, ring, interposer. Knows neither torch nor CUDA.";
    module.attr("RECORD_BYTES") = sizeof(events::Event);
    module.def("nccl_version", &nccl::version,
               "NCCL's own number (22809 is 2.28.9); 0 without NCCL");
    module.def("nccl_missing", [] {
        std::string why;
        nccl::api_available(&why);
        return why;
    });
    module.def("nccl_in_front", &nccl::in_front);
    module.def("key_of_name", &nccl::key_of_name);
    bind_rows(module);
    bind_process(module);
    bind_registration(module);
    bind_symmetric(module);
    bind_entered(module);
    bind_window_guard(module);
    bind_stacks(module);
    bind_thread_end(module);
    bind_feed(module);
    bind_ipc(module);
}
