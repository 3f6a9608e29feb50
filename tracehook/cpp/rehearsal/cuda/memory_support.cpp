// What the emulated NCCL needs to know of memory: see device.h.
#include "cuda_abi.h"
#include "device.h"
#include "devices.h"
#include "memory.h"
#include "memory_handles.h"
#include "runtime_call.h"

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int emu_memory_find(const void* pointer, size_t size, uintptr_t* base, size_t* bytes,
                               int* device) {
    const auto allocation = Memory::instance().find(pointer, size);
    if (!allocation) {
        return 0;
    }
    if (base != nullptr) {
        *base = allocation->base;
    }
    if (bytes != nullptr) {
        *bytes = allocation->size;
    }
    if (device != nullptr) {
        *device = allocation->device;
    }
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
