// The live events of the process by handle. Any thread, except in a forked child.
#pragma once

#include "event.h"
#include "handle_table.h"

namespace tracehook::rehearsal::cuda {

inline HandleTable<Event>& events() {
    // Leaked: threads may still use it while the process exits.
    static auto* const table = new HandleTable<Event>;
    return *table;
}

} // namespace tracehook::rehearsal::cuda
