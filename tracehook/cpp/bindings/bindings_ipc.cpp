// Calls into CUDA give up the GIL first, and never hold a lock of ours.
#include "bindings/bindings.h"

#include "cuda/device_wait.h"
#include "ipc/handle.h"
#include "ipc/lease.h"
#include "ipc/mapping.h"
#include "ipc/stream_memory.h"

#include <array>
#include <cstring>
#include <pybind11/stl.h>
#include <unistd.h>

namespace tracehook::bindings {

namespace {

// The segment around an address: ours (of the bank, whose ids outlive a free by torch), or the
// allocator's.
py::object segment_of(std::uintptr_t address) {
    if (const auto pool = process().bank().find(address)) {
        return py::make_tuple("pool", pool->id, pool->address, pool->size, pool->device);
    }
    if (const auto segment = process().registrar().segment_at(address)) {
        const bool pausable = segment->memory == registrar::MemoryKind::kPausable;
        return py::make_tuple(pausable ? "pausable" : "segment", segment->id, segment->address,
                              segment->size, segment->device);
    }
    return py::none();
}

py::bytes bytes_of(const std::array<std::uint8_t, 64>& handle) {
    return {reinterpret_cast<const char*>(handle.data()), handle.size()};
}

std::array<std::uint8_t, 64> handle_of(const py::bytes& handle) {
    const std::string_view bytes = handle;
    std::array<std::uint8_t, 64> copied{};
    if (bytes.size() != copied.size()) {
        throw std::invalid_argument("a handle has 64 bytes");
    }
    std::memcpy(copied.data(), bytes.data(), copied.size());
    return copied;
}

py::tuple export_memory(std::uintptr_t address, std::size_t size, int device) {
    ipc::Exported exported;
    {
        const py::gil_scoped_release release;
        exported = ipc::export_memory(address, size, device);
    }
    return py::make_tuple(static_cast<int>(exported.kind), exported.base, exported.size,
                          exported.allocation, bytes_of(exported.handle));
}

py::list export_fabric(std::uintptr_t base, std::size_t allocation, std::size_t count) {
    std::vector<ipc::FabricHandle> handles;
    {
        const py::gil_scoped_release release;
        handles = ipc::export_fabric(base, allocation, count);
    }
    py::list all;
    for (const auto& handle : handles) {
        all.append(bytes_of(handle));
    }
    return all;
}

ipc::Mapping map_runtime(const py::bytes& handle, std::size_t size, int device) {
    const ipc::RuntimeHandle copied = handle_of(handle);
    const py::gil_scoped_release release;
    return ipc::map_runtime(copied, size, device);
}

// The allocations of a peer's memory that were imported. No destructor of CUDA: see ipc/mapping.h.
struct ImportedAllocations {
    int device;
    ipc::Allocations allocations;
};

struct LeaseCount {
    ipc::Leases leases = std::make_shared<std::atomic<std::int64_t>>(0);
};

// Not taken by torch: the lease ends with the capsule.
void end_unused_lease(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") != 0) {
        auto* const tensor = static_cast<ipc::DlTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
        tensor->deleter(tensor);
    }
}

py::object lend(const LeaseCount& count, std::uintptr_t address, std::size_t size, int device) {
    ipc::DlTensor* const tensor = ipc::lend(address, size, device, count.leases);
    PyObject* const capsule = PyCapsule_New(tensor, "dltensor", &end_unused_lease);
    if (capsule == nullptr) {
        tensor->deleter(tensor);
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(capsule);
}

// What one rank of a group of peers called, in a slot of the ring. With the GIL: one thread at a
// time counts.
class PeerCalls {
  public:
    PeerCalls(std::uint64_t key, int rank, int size)
        : slot_(process().ring().take_calls({key, 0, rank, size, false})) {}
    PeerCalls(const PeerCalls&) = delete;
    PeerCalls& operator=(const PeerCalls&) = delete;
    ~PeerCalls() { end(); }

    // `captured`: a graph has the call, which happens as often as it is replayed.
    void count(std::uint32_t what, int peer, bool sends, std::uintptr_t stream, bool captured) {
        if (slot_ == nullptr || owner_ != getpid()) {
            return;
        }
        if (captured) {
            slot_->transfer_uncounted();
            return;
        }
        slot_->transfer_begins(what, 0, peer, sends, events::placed(0), stream);
        slot_->transfer_returned();
    }
    void end() {
        if (slot_ != nullptr && owner_ != getpid()) {
            new std::shared_ptr<events::CallSlot>(std::move(slot_)); // the parent's: never let go
        } else if (slot_ != nullptr) {
            slot_->end(false);
        }
        slot_.reset();
    }

  private:
    std::shared_ptr<events::CallSlot> slot_;
    pid_t owner_ = getpid();
};

// Waits until the word here is 1, takes it, and sets the peer's: both halves of a semaphore.
// Returns whether a graph got this.
bool pass_semaphore(std::uintptr_t stream, std::uintptr_t here, std::uintptr_t there, int device) {
    const ipc::OnDevice guard(device);
    const bool captured = ipc::is_capturing(reinterpret_cast<ipc::Stream>(stream));
    std::array operations{ipc::wait_until_equal(here, 1), ipc::write_word(here, 0),
                          ipc::write_word(there, 1)};
    ipc::enqueue(reinterpret_cast<ipc::Stream>(stream), operations);
    return captured;
}

void write_words(std::uintptr_t stream, const std::vector<std::uintptr_t>& addresses,
                 std::uint32_t value, int device) {
    const ipc::OnDevice guard(device);
    constexpr std::size_t kMost = 256; // operations of one batch
    std::vector<ipc::MemoryOperation> operations;
    for (const std::uintptr_t address : addresses) {
        operations.push_back(ipc::write_word(address, value));
        if (operations.size() == kMost || address == addresses.back()) {
            ipc::enqueue(reinterpret_cast<ipc::Stream>(stream), operations);
            operations.clear();
        }
    }
}

void bind_errors(py::module_& module) {
    // Never destroyed: the translator may still be asked while the interpreter ends.
    static const py::handle type =
        py::exception<ipc::CudaError>(module, "CudaError", PyExc_RuntimeError).release();
    // NOLINTNEXTLINE(performance-unnecessary-value-param): pybind11 wants this signature.
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) {
                std::rethrow_exception(thrown);
            }
        } catch (const ipc::CudaError& failure) {
            const py::object raised = type(failure.what());
            raised.attr("code") = failure.code;
            PyErr_SetObject(type.ptr(), raised.ptr());
        }
    });
}

void bind_mappings(py::module_& module) {
    py::class_<ipc::Mapping>(module, "Mapping", "A peer's segment in this process.")
        .def_readonly("address", &ipc::Mapping::address)
        .def_readonly("size", &ipc::Mapping::size)
        .def_readonly("device", &ipc::Mapping::device)
        .def_readonly("writable", &ipc::Mapping::writable)
        .def(
            "allow_writes", [](ipc::Mapping& self) { ipc::allow_writes(self); }, NoGil())
        .def("unmap", [](const ipc::Mapping& self) { ipc::unmap(self); }, NoGil());
    module.def("map_runtime", &map_runtime, py::arg("handle"), py::arg("size"), py::arg("device"));
    py::class_<ImportedAllocations>(module, "Allocations",
                                    "What a peer's memory of cuMemCreate is mapped from.")
        .def(py::init([](int device) { return ImportedAllocations{device, {}}; }),
             py::arg("device"))
        .def("__len__", [](const ImportedAllocations& self) { return self.allocations.size(); })
        .def(
            "add_file",
            [](ImportedAllocations& self, int file) {
                ipc::import_file(self.allocations, file, self.device);
            },
            NoGil(), py::arg("file"))
        .def(
            "add_fabric",
            [](ImportedAllocations& self, const py::bytes& handle) {
                const ipc::FabricHandle copied = handle_of(handle);
                const py::gil_scoped_release release;
                ipc::import_fabric(self.allocations, copied, self.device);
            },
            py::arg("handle"))
        .def(
            "map",
            [](const ImportedAllocations& self, int kind, std::size_t size, bool writable) {
                return ipc::map_allocations(self.allocations, static_cast<ipc::HandleKind>(kind),
                                            size, self.device, writable);
            },
            NoGil(), py::arg("kind"), py::arg("size"), py::arg("writable"))
        .def("release", [](ImportedAllocations& self) { ipc::release(self.allocations); }, NoGil());
    py::class_<LeaseCount>(module, "Leases", "How many tensors lie on a piece of a peer's memory.")
        .def(py::init())
        .def_property_readonly(
            "count",
            [](const LeaseCount& self) { return self.leases->load(std::memory_order_acquire); })
        .def("lend", &lend,
             "a DLPack capsule of bytes, which is a lease while it or its tensor lives",
             py::arg("address"), py::arg("size"), py::arg("device"));
}

} // namespace

void bind_ipc(py::module_& core) {
    py::module_ module = core.def_submodule("ipc", "Memory shared with peers.");
    bind_errors(module);
    module.def("segment_of", &segment_of);
    module.def("export_memory", &export_memory, py::arg("address"), py::arg("size"),
               py::arg("device"));
    module.def("has_handles", &ipc::has_handles, NoGil(), py::arg("address"));
    module.def("export_files", &ipc::export_files, NoGil(), py::arg("base"), py::arg("allocation"),
               py::arg("count"));
    module.def("export_fabric", &export_fabric, py::arg("base"), py::arg("allocation"),
               py::arg("count"));
    bind_mappings(module);
    py::class_<PeerCalls>(module, "PeerCalls", "What a rank of a group of peers called.")
        .def(py::init<std::uint64_t, int, int>(), py::arg("key"), py::arg("rank"), py::arg("size"))
        .def("count", &PeerCalls::count, py::arg("what"), py::arg("peer"), py::arg("sends"),
             py::arg("stream") = 0, py::arg("captured") = false)
        .def("end", &PeerCalls::end);
    module.def("pass_semaphore", &pass_semaphore, NoGil(), py::arg("stream"), py::arg("here"),
               py::arg("there"), py::arg("device"));
    module.def("write_words", &write_words, NoGil(), py::arg("stream"), py::arg("addresses"),
               py::arg("value"), py::arg("device"));
    module.def(
        "make_stream",
        [](int device) { return reinterpret_cast<std::uintptr_t>(ipc::make_stream(device)); },
        NoGil(), py::arg("device"));
    module.def(
        "wait_for_device",
        [](int device) {
            ipc::check_runtime("waiting for the device", cuda::wait_for_device(device));
        },
        NoGil(), py::arg("device"));
}

} // namespace tracehook::bindings
