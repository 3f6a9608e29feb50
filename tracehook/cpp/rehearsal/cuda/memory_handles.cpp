#include "memory_handles.h"

#include "driver_support.h"
#include "memory.h"
#include "unwritten.h"

namespace tracehook::rehearsal::cuda {

MemoryHandles& MemoryHandles::instance() {
    // Leaked: threads may still use it while the process exits.
    static MemoryHandles* const handles = new MemoryHandles;
    return *handles;
}

MemoryHandles::Handle MemoryHandles::retain(const Physical::Pointer& memory) {
    const Handle handle = reinterpret_cast<uintptr_t>(memory.get());
    const std::lock_guard lock(mutex_);
    ++held_.try_emplace(handle, Held{memory, 0}).first->second.holders;
    return handle;
}

bool MemoryHandles::release(Handle handle) {
    Physical::Pointer last; // outlives the lock
    const std::lock_guard lock(mutex_);
    const auto at = held_.find(handle);
    if (at == held_.end()) {
        return false;
    }
    if (--at->second.holders == 0) {
        last = std::move(at->second.memory);
        held_.erase(at);
    }
    return true;
}

Physical::Pointer MemoryHandles::find(Handle handle) const {
    const std::lock_guard lock(mutex_);
    const auto at = held_.find(handle);
    return at == held_.end() ? nullptr : at->second.memory;
}

namespace {

// Runs `body` with the memory of a handle.
template <typename Body> int with_memory(uint64_t handle, Body&& body) noexcept {
    try {
        const Physical::Pointer memory = MemoryHandles::instance().find(handle);
        return memory == nullptr ? kInvalidValue : body(memory);
    } catch (...) {
        return kMemoryAllocation;
    }
}

// Makes a handle of what `find` returns.
template <typename Find> int make_handle(uint64_t* handle, Find&& find) noexcept {
    try {
        Physical::Pointer memory;
        const int status = find(memory);
        if (status == kSuccess) {
            *handle = MemoryHandles::instance().retain(memory);
        }
        return status;
    } catch (...) {
        return kMemoryAllocation;
    }
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int emu_handle_create(uint64_t* handle, size_t size, int device, int types) {
    return make_handle(handle, [&](Physical::Pointer& memory) {
        memory =
            types != 0 ? Physical::shareable(size, device, types) : Physical::plain(size, device);
        return memory == nullptr ? kMemoryAllocation : kSuccess;
    });
}

EMU_EXPORT int emu_handle_retain(uint64_t* handle, const void* address) {
    return make_handle(handle, [&](Physical::Pointer& memory) {
        const auto allocation = Memory::instance().find(address, 1);
        if (!allocation || !allocation->has_handle) {
            return kInvalidValue;
        }
        memory = allocation->physical;
        return kSuccess;
    });
}

EMU_EXPORT int emu_handle_release(uint64_t handle) {
    return MemoryHandles::instance().release(handle) ? kSuccess : kInvalidValue;
}

EMU_EXPORT int emu_handle_describe(uint64_t handle, int* device, int* types) {
    return with_memory(handle, [&](const Physical::Pointer& memory) {
        *device = memory->device();
        *types = memory->types();
        return kSuccess;
    });
}

EMU_EXPORT int emu_handle_export(uint64_t handle, int* descriptor) {
    return with_memory(handle, [&](const Physical::Pointer& memory) {
        if ((memory->types() & kFileDescriptor) == 0) {
            return kInvalidValue;
        }
        Unwritten::instance().open_to_others(*memory);
        const int shared = memory->share();
        if (shared < 0) {
            return kOperatingSystem;
        }
        *descriptor = shared;
        return kSuccess;
    });
}

EMU_EXPORT int emu_has_fabric() {
    static const bool has = has_fabric();
    return has ? 1 : 0;
}

EMU_EXPORT int emu_handle_export_fabric(uint64_t handle, void* shared) {
    return with_memory(handle, [&](const Physical::Pointer& memory) {
        Unwritten::instance().open_to_others(*memory);
        return memory->share(*static_cast<FabricHandle*>(shared)) ? kSuccess : kInvalidValue;
    });
}

EMU_EXPORT int emu_handle_import_fabric(uint64_t* handle, const void* shared) {
    return make_handle(handle, [&](Physical::Pointer& memory) {
        return Physical::import(*static_cast<const FabricHandle*>(shared), memory);
    });
}

EMU_EXPORT int emu_handle_import(uint64_t* handle, int descriptor) {
    return make_handle(
        handle, [&](Physical::Pointer& memory) { return Physical::import(descriptor, memory); });
}

EMU_EXPORT int emu_mapping_add(void* address, size_t size, size_t offset, uint64_t handle) {
    return with_memory(handle, [&](const Physical::Pointer& memory) {
        const bool fits = size != 0 && offset <= memory->size() && size <= memory->size() - offset;
        const bool aligned =
            (reinterpret_cast<uintptr_t>(address) | size | offset) % kGranularity == 0;
        if (memory->mark_mapped()) {
            // By a second address, perhaps.
            Unwritten::instance().open_to_others(*memory);
        }
        return fits && aligned && Memory::instance().map(address, memory, offset, size)
                   ? kSuccess
                   : kInvalidValue;
    });
}

EMU_EXPORT int emu_mapping_remove(void* address, size_t size) {
    return Memory::instance().unmap(address, size) ? kSuccess : kInvalidValue;
}

EMU_EXPORT int emu_mapping_allow(void* address, size_t size, int device, int access) {
    if (access != 0 && access != 1 && access != 3) {
        return kInvalidValue;
    }
    return Memory::instance().set_access(address, size, device, static_cast<Access>(access))
               ? kSuccess
               : kInvalidValue;
}
