// The runtime's functions that let another process use device memory. A handle names the file
// behind the memory of its maker, who must be alive when it is opened.
#include "cuda_abi.h"
#include "devices.h"
#include "ipc_export.h"
#include "memory.h"
#include "runtime_call.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tracehook::rehearsal::cuda {
namespace {

// Memory of other processes that this one has open, by what their handles say. Any thread, except
// in a forked child, which does not inherit the mappings.
class IpcImports {
  public:
    static IpcImports& instance() { return leaked<IpcImports>(); }

    // Where the range is, as memory of `device`: where it is already if that device has it open,
    // with one opener more.
    Status open(void** pointer, const ExportedRange& range, int device);

    // One opener less; the last takes the mapping away.
    Status close(void* pointer);

  private:
    struct Opened {
        ExportedRange range;
        int device;
        int openers;
    };

    // Protects opened_. Comes before the mutex of the memory.
    std::mutex mutex_;
    std::map<void*, Opened> opened_;
};

Status map(void** pointer, int file, const ExportedRange& range) {
    if (!IpcExports::mark_open(file, range) || !IpcExports::is_live(file, range)) {
        return kInvalidResourceHandle;
    }
    void* const address = mmap(nullptr, range.size, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                               static_cast<off_t>(range.offset));
    if (address == MAP_FAILED) {
        return kMapBufferObjectFailed;
    }
    // A forked child would keep the mark, and could not use the memory.
    madvise(address, range.size, MADV_DONTFORK);
    *pointer = address;
    return kSuccess;
}

Status IpcImports::open(void** pointer, const ExportedRange& range, int device) {
    if (range.process == getpid()) {
        return kDeviceUninitialized;
    }
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(range.process), range.file);
    const std::lock_guard lock(mutex_);
    // Whatever the number of a stale handle leads to by now, opening it must not wait.
    const int file = ::open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) {
        return kMapBufferObjectFailed;
    }
    const auto known = std::ranges::find_if(opened_, [&](const auto& each) {
        return each.second.range == range && each.second.device == device;
    });
    Status status = kSuccess;
    if (known == opened_.end()) {
        status = map(pointer, file, range);
        if (status == kSuccess) {
            opened_.emplace(*pointer, Opened{range, device, 1});
            Memory::instance().adopt(*pointer, range.size, device);
        }
    } else if (IpcExports::is_live(file, range)) {
        *pointer = known->first;
        ++known->second.openers;
    } else {
        status = kInvalidResourceHandle;
    }
    ::close(file);
    return status;
}

Status IpcImports::close(void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto at = opened_.find(pointer);
    if (at == opened_.end()) {
        return kInvalidValue;
    }
    if (--at->second.openers == 0) {
        Memory::instance().disown(pointer);
        munmap(pointer, at->second.range.size);
        opened_.erase(at);
    }
    return kSuccess;
}

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

} // namespace tracehook::rehearsal::cuda
