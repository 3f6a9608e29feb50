// What the emulated NCCL needs to know of captures, and to have recorded: see device.h.
#include "capture.h"
#include "cuda_abi.h"
#include "device.h"
#include "devices.h"
#include "stream_table.h"

#include <cstdio>
#include <cstdlib>

namespace tracehook::rehearsal::cuda {
namespace {

using Function = void (*)(void*);

// Each launch holds the argument until its work is done; so does the node.
Node::Launch replay(Function work, Function launched, std::shared_ptr<void> argument) {
    return [=](const std::shared_ptr<Stream>& stream) {
        launched(argument.get());
        stream->enqueue([work, argument] { work(argument.get()); });
    };
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int emu_stream_capturing(void* stream) {
    if (forked_child()) {
        return 0;
    }
    const std::shared_ptr<Stream> found = StreamTable::instance().find(stream);
    return found != nullptr && Captures::instance().holds(*found) ? 1 : 0;
}

EMU_EXPORT int emu_capture_under_way(void) {
    return !forked_child() && Captures::instance().forbids_unsafe_calls() ? 1 : 0;
}

EMU_EXPORT void emu_capture_invalidate(void) {
    if (!forked_child()) {
        Captures::instance().invalidate_forbidding();
    }
}

EMU_EXPORT void emu_stream_enqueue_replayable(void* handle, Function work, Function launched,
                                              Function dropped, void* argument) {
    if (forked_child()) {
        return;
    }
    const std::shared_ptr<Stream> stream = StreamTable::instance().find(handle);
    const Node::Launch launch = replay(work, launched, std::shared_ptr<void>(argument, dropped));
    if (stream == nullptr || !Captures::instance().record(stream, launch)) {
        std::fprintf(stderr,
                     "emulated CUDA: replayable work given to the stream %p, which is not "
                     "captured\n",
                     handle);
        std::abort();
    }
}
