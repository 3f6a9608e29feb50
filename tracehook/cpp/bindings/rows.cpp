#include "bindings/rows.h"

namespace tracehook {

py::bytes peek(core::Ring& ring, std::size_t limit, std::size_t skip) {
    std::vector<core::Event> events(limit);
    std::size_t count = 0;
    {
        const py::gil_scoped_release release;
        count = ring.peek(events, skip);
    }
    return {reinterpret_cast<const char*>(events.data()), count * sizeof(core::Event)};
}

py::list unlogged_calls(core::Ring& ring, bool live) {
    py::list out;
    for (const core::CallSlot* slot : ring.calls().unlogged(live)) {
        out.append(py::bytes(reinterpret_cast<const char*>(slot), sizeof(*slot)));
    }
    return out;
}

py::list communicators(const core::Registrar& registrar) {
    py::list rows;
    for (const auto& communicator : registrar.communicators()) {
        const core::Identity& who = communicator->identity();
        py::dict row;
        row["id"] = who.id;
        row["key"] = who.key;
        row["pointer"] = reinterpret_cast<std::uintptr_t>(who.pointer);
        row["device"] = who.device;
        row["rank"] = who.rank;
        row["size"] = who.size;
        row["ready"] = communicator->was_ready();
        row["failed"] = communicator->failed();
        row["held"] = communicator->held();
        row["made"] = communicator->made();
        row["undone"] = communicator->undone();
        row["device_communicators"] = communicator->device_communicators();
        row["local"] = static_cast<int>(who.local);
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

py::list ranges(const core::Registrar& registrar) {
    py::list rows;
    for (const core::Range& range : registrar.ranges()) {
        rows.append(py::make_tuple(range.device, range.address, range.size));
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

} // namespace tracehook
