// How long the core waits, where it does not wait for as long as it takes. Tests shorten these.
#pragma once

#include <chrono>

namespace tracehook::registrar {

struct Patience {
    using Duration = std::chrono::milliseconds;

    // An abort waits this long for a register or deregister call that is under way. Such a call is
    // local and short. If one hangs all the same, or is kept out by a call that hangs, the abort
    // must still go through: it is what ends the hang.
    Duration abort_for_call{5'000};

    // A registration call of somebody else waits this long for the gate, once. It may be the one
    // that torch makes before the abort which alone can free the gate.
    Duration others_for_gate{5'000};

    // A free waits this long for a communicator that is busy. Then it buries its segment, where
    // that can be (registrar/grave.h). Most calls are over sooner, and then nothing is kept.
    Duration free_for_call{100};

    // Who finds no room on a device waits this long for memory that is buried.
    Duration room_for_call{5'000};

    // A free that waits this long is worth a line: somebody's job seems to hang.
    Duration free_until_notice{10'000};

    // disable() and a destroy wait this long for a non-blocking communicator that is in progress. A
    // free that cannot bury its segment does not give up: its memory goes when it returns.
    Duration undoing_for_ready{30'000};

    // CUDA tells of the end of a graph on a thread of its own. The end of a communicator waits this
    // long for that before it takes the graph for one that lives.
    Duration end_for_graphs{500};

    // Segments that are freed during an abort wait this long for it, counted from its beginning.
    Duration free_for_abort{5'000};
};

} // namespace tracehook::registrar
