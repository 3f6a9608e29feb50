#include "torch/segment_source.h"

#include "cuda/runtime.h"
#include "cuda/segment_memory.h"
#include "elf/slots.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace tracehook::torch_hook {

namespace {

constexpr int kSuccess = 0;
constexpr int kNoRoom = 2;                           // cudaErrorMemoryAllocation
constexpr int kInvalidHandle = 400;                  // cudaErrorInvalidResourceHandle
constexpr int kEnabledBefore = 704;                  // cudaErrorPeerAccessAlreadyEnabled
constexpr std::size_t kDevices = 64;                 // more than a host has
constexpr std::uint64_t kMagic = 0x314D4D5648544854; // "THTHVMM1"

struct RuntimeHandle { // cudaIpcMemHandle_t
    std::uint64_t magic = 0;
    std::int32_t process = 0;
    std::int32_t descriptor = -1;
    std::uint64_t size = 0;
    std::uint64_t number = 0; // of the memory in its process: a handle is used as a name, too
    std::array<std::uint8_t, 32> unused{};
};
static_assert(sizeof(RuntimeHandle) == 64);

template <typename... Args> using Call = int (*)(Args...);

struct Real {
    Call<void**, std::size_t> cudaMalloc = nullptr;
    Call<void*> cudaFree = nullptr;
    Call<RuntimeHandle*, void*> cudaIpcGetMemHandle = nullptr;
    Call<void**, RuntimeHandle, unsigned> cudaIpcOpenMemHandle = nullptr;
    Call<void*> cudaIpcCloseMemHandle = nullptr;
    Call<int, unsigned> cudaDeviceEnablePeerAccess = nullptr;
};

struct Block {
    std::size_t size = 0;
    int device = -1;
    int descriptor = -1; // for other processes, once one asked
    std::uint64_t number = 0;
};

// Never destroyed: the allocator frees memory at exit, too.
struct Source {
    Real real;        // before any slot leads here
    std::mutex mutex; // what follows
    std::unordered_map<std::uintptr_t, Block> blocks;
    std::unordered_map<std::uintptr_t, std::size_t> mapped; // memory of other processes
    std::array<std::vector<int>, kDevices> also;            // who reaches a device's memory
    std::size_t bytes = 0;
    std::uint64_t numbers = 0;
    std::array<std::atomic<int>, kDevices> able{}; // 1: yes, 2: no
    std::atomic<int> refused{0};
    std::atomic<bool> replaced{false};

    static Source& instance() {
        static auto* const one = new Source;
        return *one;
    }
};

int current_device() noexcept {
    int device = -1;
    const auto get = cuda::runtime().cudaGetDevice;
    return get != nullptr && get(&device) == kSuccess ? device : -1;
}

bool is_able(Source& source, int device) noexcept {
    if (device < 0 || static_cast<std::size_t>(device) >= kDevices) {
        return false;
    }
    std::atomic<int>& known = source.able[static_cast<std::size_t>(device)];
    if (known.load(std::memory_order_relaxed) == 0) {
        known.store(cuda::makes_shareable(device) ? 1 : 2, std::memory_order_relaxed);
    }
    return known.load(std::memory_order_relaxed) == 1;
}

// The allocator asks for whole multiples of 2 MiB; whoever asks for less gets what he always got.
int on_cudaMalloc(void** out, std::size_t size) {
    Source& source = Source::instance();
    const int device = size != 0 && size % cuda::kGranularity == 0 ? current_device() : -1;
    if (!is_able(source, device)) {
        return source.real.cudaMalloc(out, size);
    }
    std::vector<int> also;
    {
        const std::lock_guard guard(source.mutex);
        also = source.also[static_cast<std::size_t>(device)];
    }
    std::uintptr_t address = 0;
    const int status = cuda::allocate_shareable(&address, size, device, also);
    if (status == kNoRoom) {
        return status; // the allocator frees what it has cached, and asks again
    }
    if (status != kSuccess) {
        source.refused.fetch_add(1, std::memory_order_relaxed);
        return source.real.cudaMalloc(out, size);
    }
    const std::lock_guard guard(source.mutex);
    source.blocks[address] = {size, device, -1, ++source.numbers};
    source.bytes += size;
    *out = reinterpret_cast<void*>(address);
    return kSuccess;
}

int on_cudaFree(void* pointer) {
    Source& source = Source::instance();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    Block block;
    {
        const std::lock_guard guard(source.mutex);
        const auto found = source.blocks.find(address);
        if (found != source.blocks.end()) {
            block = found->second;
            source.blocks.erase(found);
            source.bytes -= block.size;
        }
    }
    if (block.size == 0) {
        return source.real.cudaFree(pointer);
    }
    if (block.descriptor >= 0) {
        close(block.descriptor);
    }
    return cuda::free_shareable(address, block.size, block.device);
}

int on_cudaIpcGetMemHandle(RuntimeHandle* handle, void* pointer) {
    Source& source = Source::instance();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    {
        const std::lock_guard guard(source.mutex);
        const auto found = source.blocks.find(address);
        if (found != source.blocks.end()) {
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
                     : cuda::free_shareable(address, size, current_device());
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
        if (block.device == peer) {
            cuda::allow_access(address, block.size, device);
        }
    }
    return status;
}

std::string library_of(const void* function) {
    Dl_info info;
    if (function == nullptr || dladdr(function, &info) == 0 || info.dli_fname == nullptr) {
        return "";
    }
    const std::string path = info.dli_fname;
    return path.substr(path.rfind('/') + 1);
}

} // namespace

std::string replace_segment_source() {
    Source& source = Source::instance();
    if (source.replaced.load(std::memory_order_acquire)) {
        return "";
    }
    const std::vector<elf::Replacement> calls = {
#define REPLACED(name) {#name, reinterpret_cast<void*>(&on_##name)}
        REPLACED(cudaMalloc),
        REPLACED(cudaFree),
        REPLACED(cudaIpcGetMemHandle),
        REPLACED(cudaIpcOpenMemHandle),
        REPLACED(cudaIpcCloseMemHandle),
        REPLACED(cudaDeviceEnablePeerAccess),
#undef REPLACED
    };
    const std::string wanted = "libc10_cuda";
    const std::string other = "libtorch_cuda.";
    std::vector<elf::Slot> slots;
    for (const elf::LoadedObject& object :
         elf::loaded_objects(calls, [&](const elf::LoadedObject& one) {
             const std::string name = one.name();
             return name.starts_with(wanted) || name.starts_with(other) ? calls.size()
                                                                        : std::size_t{0};
         })) {
        const bool allocates = object.name().starts_with(wanted);
        for (const elf::Slot& slot : object.slots) {
            if (allocates || slot.replacement >= 2) {
                slots.push_back(slot);
            }
            if (allocates && slot.replacement < 2) {
                void* target = slot.target();
                if (object.contains(target)) { // not used yet
                    target = dlsym(RTLD_DEFAULT, calls[slot.replacement].symbol);
                }
                const std::string library = library_of(target);
                if (target != nullptr && !library.starts_with("libcudart")) {
                    return library + " stands before cudaMalloc and cudaFree already";
                }
            }
        }
    }
    Real found;
    void* const runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    void* const older =
        runtime != nullptr ? nullptr : dlopen("libcudart.so.12", RTLD_LAZY | RTLD_NOLOAD);
    const auto look = [&](auto& target, const char* name) {
        void* function = dlsym(RTLD_DEFAULT, name);
        if (function == nullptr) {
            void* const library = runtime != nullptr ? runtime : older;
            function = library != nullptr ? dlsym(library, name) : nullptr;
        }
        target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(function);
        return function != nullptr;
    };
    if (!look(found.cudaMalloc, "cudaMalloc") || !look(found.cudaFree, "cudaFree") ||
        !look(found.cudaIpcGetMemHandle, "cudaIpcGetMemHandle") ||
        !look(found.cudaIpcOpenMemHandle, "cudaIpcOpenMemHandle") ||
        !look(found.cudaIpcCloseMemHandle, "cudaIpcCloseMemHandle") ||
        !look(found.cudaDeviceEnablePeerAccess, "cudaDeviceEnablePeerAccess")) {
        return "no CUDA runtime is loaded";
    }
    if (slots.empty()) {
        return "this torch does not call cudaMalloc through a slot";
    }
    source.real = found;
    elf::rewrite(slots, calls);
    source.replaced.store(true, std::memory_order_release);
    return "";
}

SourceTold segment_source() noexcept {
    Source& source = Source::instance();
    const std::lock_guard guard(source.mutex);
    return {source.replaced.load(std::memory_order_acquire), source.blocks.size(), source.bytes,
            source.refused.load(std::memory_order_relaxed)};
}

} // namespace tracehook::torch_hook
