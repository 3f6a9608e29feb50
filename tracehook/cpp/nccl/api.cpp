#include "nccl/api.h"

#include "cuda/runtime.h"
#include "elf/loaded.h"

#include <array>
#include <dlfcn.h>
#include <stdexcept>

namespace tracehook::nccl {

namespace {

// `pncclX` is the strong twin of the weak `ncclX`: the entry that nobody interposes.
void* nccl_symbol(void* library, const char* name) noexcept {
    if (void* twin = dlsym(library, (std::string("p") + name).c_str())) {
        return twin;
    }
    return dlsym(library, name);
}

// What torch itself is bound to: the global scope first (a preloaded runtime comes before all),
// then the library.
void* cuda_symbol(void* library, const char* name) noexcept {
    if (void* found = dlsym(RTLD_DEFAULT, name)) {
        return found;
    }
    return library != nullptr ? dlsym(library, name) : nullptr;
}

template <typename Pointer> void assign(Pointer& target, void* symbol) noexcept {
    target = reinterpret_cast<Pointer>(symbol);
}

// The name without a number has three arguments in CUDA 12, and all seven in CUDA 13.
void* capture_info(void* library) noexcept {
    constexpr int kCuda13 = 13000;
    Function<int*> ask = nullptr;
    assign(ask, cuda_symbol(library, "cudaRuntimeGetVersion"));
    int version = 0;
    const bool seven = ask != nullptr && ask(&version) == 0 && version >= kCuda13;
    return cuda_symbol(library, seven ? "cudaStreamGetCaptureInfo" : "cudaStreamGetCaptureInfo_v3");
}

Api load() {
    void* nccl = elf::loaded_library({"libnccl.so.2", "libnccl.so"});
    if (nccl == nullptr) {
        throw std::runtime_error(
            "no NCCL is loaded in this process: torch was built without it, or not imported yet");
    }
    void* cuda = elf::loaded_library({"libcudart.so.13", "libcudart.so.12", "libcudart.so"});
    Api api;
#define GUARDED(name, position, ...) assign(api.name, nccl_symbol(nccl, #name));
#define PLACED(name, position, operation, send, receive, by_send, by_receive, ...)                 \
    assign(api.name, nccl_symbol(nccl, #name));
#define LIFECYCLE(name, ...) assign(api.name, nccl_symbol(nccl, #name));
#include "nccl/calls.def"
#undef GUARDED
#undef PLACED
#undef LIFECYCLE
    assign(api.ncclCommCount, nccl_symbol(nccl, "ncclCommCount"));
    assign(api.ncclCommUserRank, nccl_symbol(nccl, "ncclCommUserRank"));
    assign(api.ncclCommCuDevice, nccl_symbol(nccl, "ncclCommCuDevice"));
    assign(api.ncclGetVersion, nccl_symbol(nccl, "ncclGetVersion"));
    assign(api.ncclCommMemStats, nccl_symbol(nccl, "ncclCommMemStats"));
    assign(api.ncclMemAlloc, nccl_symbol(nccl, "ncclMemAlloc"));
    assign(api.ncclMemFree, nccl_symbol(nccl, "ncclMemFree"));
    assign(api.ncclGetLastError, nccl_symbol(nccl, "ncclGetLastError"));
    assign(api.cudaGetDevice, cuda_symbol(cuda, "cudaGetDevice"));
    assign(api.cudaSetDevice, cuda_symbol(cuda, "cudaSetDevice"));
    assign(api.cudaStreamIsCapturing, cuda_symbol(cuda, "cudaStreamIsCapturing"));
    assign(api.cudaStreamGetCaptureInfo, capture_info(cuda));
    assign(api.cudaUserObjectCreate, cuda_symbol(cuda, "cudaUserObjectCreate"));
    assign(api.cudaUserObjectRelease, cuda_symbol(cuda, "cudaUserObjectRelease"));
    assign(api.cudaGraphRetainUserObject, cuda_symbol(cuda, "cudaGraphRetainUserObject"));
    if (api.ncclCommRegister == nullptr || api.ncclCommDeregister == nullptr) {
        throw std::runtime_error(
            "the loaded NCCL has no ncclCommRegister: 2.19 or newer is needed");
    }
    if (api.cudaGetDevice == nullptr || api.cudaSetDevice == nullptr) {
        throw std::runtime_error("no CUDA runtime is loaded in this process");
    }
    return api;
}

// Whether a stream is captured. The driver answers four times as fast as the runtime. It is loaded
// once there are streams.
Function<Stream, int*> capture_question() noexcept {
    Function<Stream, int*> ask = nullptr;
    assign(ask, cuda_symbol(elf::loaded_library({"libcuda.so.1"}), "cuStreamIsCapturing"));
    return ask != nullptr ? ask : api().cudaStreamIsCapturing;
}

} // namespace

const Api& api() {
    static const Api* const loaded =
        new Api(load()); // never destroyed: used until the last thread ends
    return *loaded;
}

std::string in_front() {
    void* const nccl = elf::loaded_library({"libnccl.so.2", "libnccl.so"});
    constexpr std::array kNames = {
#define GUARDED(name, ...) #name,
#define PLACED(name, ...) #name,
#define LIFECYCLE(name, ...) #name,
#include "nccl/calls.def"
#undef GUARDED
#undef PLACED
#undef LIFECYCLE
    };
    for (const char* const name : kNames) {
        Dl_info own{};
        Dl_info found{};
        if (nccl != nullptr && dladdr(dlsym(nccl, name), &own) != 0 &&
            dladdr(dlsym(RTLD_DEFAULT, name), &found) != 0 && own.dli_fbase != found.dli_fbase) {
            return found.dli_fname;
        }
    }
    return "";
}

bool api_available(std::string* why) noexcept {
    try {
        api();
        return true;
    } catch (const std::exception& failure) {
        if (why != nullptr) {
            *why = failure.what();
        }
        return false;
    }
}

int version() noexcept {
    int version = 0;
    if (!api_available() || api().ncclGetVersion == nullptr ||
        api().ncclGetVersion(&version) != kSuccess) {
        return 0;
    }
    return version;
}

int current_device() noexcept {
    int device = -1;
    return cuda::absorbed(api().cudaGetDevice(&device)) == 0 ? device : -1;
}

bool capturing(Stream stream) noexcept {
    constexpr int kActive = 1; // cudaStreamCaptureStatusActive
    static const Function<Stream, int*> ask = capture_question();
    int status = 0;
    // CUDA never captures the default stream.
    return stream != nullptr && ask != nullptr && cuda::absorbed(ask(stream, &status)) == 0 &&
           status == kActive;
}

} // namespace tracehook::nccl
