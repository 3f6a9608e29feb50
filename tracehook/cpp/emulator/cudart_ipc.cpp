// The runtime's functions that let another process use device memory. A handle names the file
// behind the memory of its maker, who must be alive when it is opened.
#include "cuda_abi.h"
#include "devices.h"
#include "memory.h"
#include "runtime_call.h"

#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tracehook::emulator {
namespace {

struct HandleContent {
    pid_t process;
    int file;
    uint64_t offset;
    uint64_t size;
};
static_assert(sizeof(HandleContent) <= sizeof(IpcHandle));

Status make_handle(IpcHandle* handle, const void* pointer) {
    const auto allocation = Memory::instance().find(pointer, 1);
    if (!allocation || allocation->kind != Kind::kOwned) {
        return kInvalidValue;
    }
    const HandleContent content{getpid(), Backing::instance().file(), allocation->offset,
                                allocation->mapped};
    *handle = {};
    std::memcpy(handle, &content, sizeof content);
    return kSuccess;
}

Status open_handle(void** pointer, const IpcHandle& handle) {
    HandleContent content;
    std::memcpy(&content, &handle, sizeof content);
    if (content.process == getpid()) {
        return kDeviceUninitialized;
    }
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(content.process),
                  content.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return kMapBufferObjectFailed;
    }
    void* const address = mmap(nullptr, content.size, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                               static_cast<off_t>(content.offset));
    close(file);
    if (address == MAP_FAILED) {
        return kMapBufferObjectFailed;
    }
    Memory::instance().adopt(address, content.size, current_device());
    *pointer = address;
    return kSuccess;
}

Status close_handle(void* pointer) {
    const auto allocation = Memory::instance().find(pointer, 1);
    if (!allocation || !Memory::instance().disown(pointer)) {
        return kInvalidValue;
    }
    munmap(pointer, allocation->mapped);
    return kSuccess;
}

} // namespace
} // namespace tracehook::emulator

using namespace tracehook::emulator;

EMU_EXPORT int cudaIpcGetMemHandle(IpcHandle* handle, void* pointer) {
    return context_call([&] { return make_handle(handle, pointer); });
}

// By value, as the real function: the handle travels in memory, not in registers.
EMU_EXPORT int cudaIpcOpenMemHandle(void** pointer, IpcHandle handle, unsigned) {
    return context_call([&] { return open_handle(pointer, handle); });
}

EMU_EXPORT int cudaIpcCloseMemHandle(void* pointer) {
    return context_call([&] { return close_handle(pointer); });
}
