// The runtime's functions that let another process use device memory. A handle names the file
// behind the memory of its maker, who must be alive when it is opened.
#include "cuda_abi.h"
#include "devices.h"
#include "ipc_export.h"
#include "ipc_import.h"
#include "memory.h"
#include "runtime_call.h"

#include <cstring>

namespace tracehook::rehearsal::cuda {
namespace {

static_assert(sizeof(ExportedRange) <= sizeof(IpcHandle));

// Of an address inside of the memory too: the handle is that of the whole.
Status make_handle(IpcHandle* handle, const void* pointer) {
    const auto allocation = Memory::instance().find(pointer, 1);
    if (!allocation || allocation->kind != Kind::kOwned || allocation->has_handle) {
        return kInvalidValue;
    }
    const ExportedRange range = IpcExports::instance().publish(*allocation);
    *handle = {};
    std::memcpy(handle, &range, sizeof range);
    return kSuccess;
}

Status open_handle(void** pointer, const IpcHandle& handle) {
    ExportedRange range;
    std::memcpy(&range, &handle, sizeof range);
    return IpcImports::instance().open(pointer, range, current_device());
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cudaIpcGetMemHandle(IpcHandle* handle, void* pointer) {
    return context_call([&] { return make_handle(handle, pointer); });
}

// By value, as the real function: the handle travels in memory, not in registers.
EMU_EXPORT int cudaIpcOpenMemHandle(void** pointer, IpcHandle handle, unsigned) {
    return context_call([&] { return open_handle(pointer, handle); });
}

EMU_EXPORT int cudaIpcCloseMemHandle(void* pointer) {
    return context_call([&] { return IpcImports::instance().close(pointer); });
}
