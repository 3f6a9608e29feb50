// Work of the host in the place of kernels: see device.h.
#include "copy.h"
#include "device.h"
#include "devices.h"

#include <memory>

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT void emu_stream_compute(void* stream, void (*work)(void*), void (*dropped)(void*),
                                   void* argument) {
    const std::shared_ptr<void> held(argument, dropped);
    if (!forked_child()) {
        // A stream or a capture that is no more takes no kernel either, and the program has heard
        // of it.
        run_on_stream(stream, [work, held] { work(held.get()); });
    }
}
