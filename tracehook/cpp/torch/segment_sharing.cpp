// Segments of virtual memory for other processes (legacy IPC handles) and other devices.
#include "cuda/segment_memory.h"
#include "torch/source_state.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tracehook::torch {

namespace {

constexpr int kInvalidHandle = 400;                  // cudaErrorInvalidResourceHandle
constexpr int kEnabledBefore = 704;                  // cudaErrorPeerAccessAlreadyEnabled
constexpr std::uint64_t kMagic = 0x314D4D5648544854; // "THTHVMM1"

// -1 if the process has gone, or the system does not allow it.
int taken_from(const RuntimeHandle& handle) noexcept {
#if defined(SYS_pidfd_open) && defined(SYS_pidfd_getfd)
    const auto process = static_cast<int>(syscall(SYS_pidfd_open, handle.process, 0));
    if (process < 0) {
        return -1;
    }
    const auto descriptor =
        static_cast<int>(syscall(SYS_pidfd_getfd, process, handle.descriptor, 0));
    close(process);
    return descriptor;
#else
    static_cast<void>(handle);
    return -1;
#endif
}

} // namespace

int on_cudaIpcGetMemHandle(RuntimeHandle* handle, void* pointer) {
    Source& source = Source::instance();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    {
        const std::lock_guard guard(source.mutex);
        const auto found = source.blocks.find(address);
        if (found != source.blocks.end() && found->second.shareable) {
            Block& block = found->second;
            if (block.descriptor < 0) {
                // The importer takes the descriptor out of this process, as torch's own importer of
                // expandable segments does. Some systems allow that only to who is named here.
                prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
                block.descriptor = cuda::export_descriptor(address);
            }
            if (block.descriptor < 0) {
                return kInvalidHandle;
            }
            *handle = {kMagic, getpid(), block.descriptor, block.size, block.number, {}};
            return kSuccess;
        }
    }
    return source.real.cudaIpcGetMemHandle(handle, pointer);
}

int on_cudaIpcOpenMemHandle(void** out, RuntimeHandle handle, unsigned flags) {
    Source& source = Source::instance();
    if (handle.magic != kMagic) {
        return source.real.cudaIpcOpenMemHandle(out, handle, flags);
    }
    const int device = current_device();
    const int descriptor = device >= 0 ? taken_from(handle) : -1;
    if (descriptor < 0) {
        return kInvalidHandle;
    }
    std::uintptr_t address = 0;
    const int status = cuda::map_descriptor(&address, descriptor, handle.size, device);
    close(descriptor);
    if (status != kSuccess) {
        return status;
    }
    const std::lock_guard guard(source.mutex);
    source.mapped[address] = handle.size;
    *out = reinterpret_cast<void*>(address);
    return kSuccess;
}

int on_cudaIpcCloseMemHandle(void* pointer) {
    Source& source = Source::instance();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    std::size_t size = 0;
    {
        const std::lock_guard guard(source.mutex);
        const auto found = source.mapped.find(address);
        if (found != source.mapped.end()) {
            size = found->second;
            source.mapped.erase(found);
        }
    }
    return size == 0 ? source.real.cudaIpcCloseMemHandle(pointer)
                     : cuda::free_shareable(address, size, current_device(), false);
}

// cudaMalloc's memory of `peer` is open to this device from now on, so ours is, too.
int on_cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    Source& source = Source::instance();
    const int status = source.real.cudaDeviceEnablePeerAccess(peer, flags);
    const int device = current_device();
    if ((status != kSuccess && status != kEnabledBefore) || device < 0 || peer < 0 ||
        static_cast<std::size_t>(peer) >= kDevices) {
        return status;
    }
    const std::lock_guard guard(source.mutex);
    std::vector<int>& also = source.also[static_cast<std::size_t>(peer)];
    for (const int each : also) {
        if (each == device) {
            return status;
        }
    }
    also.push_back(device);
    // With the mutex: a block must not go meanwhile. It happens once for two devices.
    for (const auto& [address, block] : source.blocks) {
        if (block.shareable && block.device == peer) {
            cuda::allow_access(address, block.size, device);
        }
    }
    return status;
}

} // namespace tracehook::torch
