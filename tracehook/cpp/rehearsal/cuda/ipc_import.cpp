#include "ipc_import.h"

#include "memory.h"

#include <algorithm>
#include <cstdio>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tracehook::rehearsal::cuda {
namespace {

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

} // namespace

IpcImports& IpcImports::instance() {
    // Leaked: threads may still use it while the process exits.
    static IpcImports* const imports = new IpcImports;
    return *imports;
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

} // namespace tracehook::rehearsal::cuda
