// What device.h offers of captures, of work of the host in the place of kernels, and of memory.
#include "device.h"

#include "backing.h"
#include "capture.h"
#include "copy.h"
#include "cuda_abi.h"
#include "devices.h"
#include "identity.h"
#include "memory.h"
#include "memory_handles.h"
#include "runtime_call.h"
#include "stream_table.h"

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace tracehook::rehearsal::cuda {
namespace {

using Function = void (*)(void*);

// Each launch holds the argument until its work is done; so does the node.
Node::Launch replay(Function work, Function launched, const std::shared_ptr<void>& argument) {
    return [=](const std::shared_ptr<Stream>& stream) {
        launched(argument.get());
        stream->enqueue([work, argument] { work(argument.get()); });
    };
}

} // namespace

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

EMU_EXPORT void emu_stream_compute(void* stream, void (*work)(void*), void (*dropped)(void*),
                                   void* argument) {
    const std::shared_ptr<void> held(argument, dropped);
    if (!forked_child()) {
        // A stream or a capture that is no more takes no kernel either, and the program has heard
        // of it.
        run_on_stream(stream, [work, held] { work(held.get()); });
    }
}

EMU_EXPORT int emu_memory_find(const void* pointer, size_t size, uintptr_t* base, size_t* bytes,
                               int* device) {
    const auto allocation = Memory::instance().find(pointer, size);
    if (!allocation) {
        return 0;
    }
    give(base, allocation->base);
    give(bytes, allocation->size);
    give(device, allocation->device);
    return 1;
}

EMU_EXPORT int emu_memory_export(const void* pointer, int* fd, uint64_t* offset) {
    const auto allocation = Memory::instance().find(pointer, 1);
    // Memory of another process can only be exported by that process.
    if (!allocation || allocation->physical == nullptr) {
        return 0;
    }
    *fd = allocation->physical->file();
    *offset = allocation->offset + (reinterpret_cast<uintptr_t>(pointer) - allocation->base);
    return 1;
}

EMU_EXPORT void emu_set_free_observer(void (*observer)(uintptr_t base, size_t size)) {
    Memory::instance().observe_frees(observer);
}

EMU_EXPORT void* emu_memory_allocate(size_t size, int device) {
    if (enter_runtime() != kSuccess || device < 0 || device >= device_count()) {
        return nullptr;
    }
    try {
        activate_device(device);
        return Memory::instance().allocate(size, device, true);
    } catch (...) {
        remember(kMemoryAllocation); // as the runtime does, to which ncclMemAlloc turns in the end
        return nullptr;
    }
}

EMU_EXPORT int emu_memory_free(void* pointer) {
    return !forked_child() && Memory::instance().free(pointer) ? 1 : 0;
}

EMU_EXPORT int emu_memory_has_handle(const void* pointer) {
    const auto allocation = Memory::instance().find(pointer, 1);
    return allocation && allocation->has_handle ? 1 : 0;
}

EMU_EXPORT int emu_memory_is_exportable(const void* pointer) {
    const auto allocation = Memory::instance().find(pointer, 1);
    return allocation && allocation->has_handle && allocation->physical->types() != 0 ? 1 : 0;
}

EMU_EXPORT uint64_t emu_memory_number(const void* pointer) {
    const auto allocation = Memory::instance().find(pointer, 1);
    return allocation && allocation->has_handle ? allocation->physical->number() : 0;
}

EMU_EXPORT size_t emu_memory_granularity(void) {
    return kGranularity;
}

EMU_EXPORT size_t emu_device_capacity(void) {
    return device_capacity();
}

EMU_EXPORT void emu_memory_leak(const void* pointer) {
    const auto allocation = Memory::instance().find(pointer, 1);
    if (!allocation || !allocation->has_handle) {
        return;
    }
    try {
        MemoryHandles::instance().retain(allocation->physical);
    } catch (...) {
        // Without memory for the book of handles nothing is held.
    }
}

} // namespace tracehook::rehearsal::cuda
