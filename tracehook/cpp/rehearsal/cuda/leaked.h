// What a process has one of: made at first use and never destroyed, because threads may still use
// it while the process exits. Any thread.
#pragma once

namespace tracehook::rehearsal::cuda {

template <typename Object> Object& leaked() {
    static auto* const object = new Object;
    return *object;
}

} // namespace tracehook::rehearsal::cuda
