#include "ipc/driver.h"

#include "cuda/runtime.h"
#include "elf/loaded.h"

#include <dlfcn.h>
#include <initializer_list>

namespace tracehook::ipc {

namespace {

// The global scope first: what torch itself is bound to may be a preloaded runtime.
template <typename Pointer>
void find(Pointer& target, void* library, std::initializer_list<const char*> names) noexcept {
    for (const char* name : names) {
        void* found = dlsym(RTLD_DEFAULT, name);
        if (found == nullptr && library != nullptr) {
            found = dlsym(library, name);
        }
        if (found != nullptr) {
            target = reinterpret_cast<Pointer>(found);
            return;
        }
    }
}

Driver load() {
    void* runtime = elf::loaded_library({"libcudart.so.13", "libcudart.so.12", "libcudart.so"});
    void* library = elf::loaded_library({"libcuda.so.1"});
    Driver found{cuda::virtual_memory()};
#define FROM_RUNTIME(name) find(found.name, runtime, {#name})
#define FROM_DRIVER(name) find(found.name, library, {#name})
    FROM_RUNTIME(cudaGetDevice);
    FROM_RUNTIME(cudaSetDevice);
    FROM_RUNTIME(cudaDeviceGetStreamPriorityRange);
    FROM_RUNTIME(cudaStreamCreateWithPriority);
    FROM_RUNTIME(cudaStreamIsCapturing);
    FROM_RUNTIME(cudaIpcGetMemHandle);
    FROM_RUNTIME(cudaIpcOpenMemHandle);
    FROM_RUNTIME(cudaIpcCloseMemHandle);
    FROM_RUNTIME(cudaGetErrorName);
    FROM_RUNTIME(cudaGetErrorString);
    FROM_DRIVER(cuStreamBatchMemOp_v2);
    FROM_DRIVER(cuGetErrorName);
    FROM_DRIVER(cuGetErrorString);
#undef FROM_RUNTIME
#undef FROM_DRIVER
    if (found.cudaGetDevice == nullptr || found.cudaSetDevice == nullptr ||
        found.cudaIpcGetMemHandle == nullptr || found.cudaIpcOpenMemHandle == nullptr ||
        found.cudaIpcCloseMemHandle == nullptr) {
        throw std::runtime_error("no CUDA runtime with IPC is loaded in this process");
    }
    return found;
}

std::string described(const char* call, int status, const char* name, const char* text) {
    return std::string(call) + ": " + (name != nullptr ? name : "CUDA error") + " (" +
           std::to_string(status) + (text != nullptr ? std::string(", ") + text : "") + ")";
}

} // namespace

const Driver& driver() {
    static const Driver* const loaded = new Driver(load()); // never destroyed, like its libraries
    return *loaded;
}

void check_runtime(const char* call, int status) {
    if (status == 0) {
        return;
    }
    cuda::absorbed(status);
    const Driver& cuda = driver();
    throw CudaError(described(call, status,
                              cuda.cudaGetErrorName ? cuda.cudaGetErrorName(status) : nullptr,
                              cuda.cudaGetErrorString ? cuda.cudaGetErrorString(status) : nullptr),
                    status);
}

void check_driver(const char* call, int status) {
    if (status == 0) {
        return;
    }
    const char* name = nullptr;
    const char* text = nullptr;
    if (driver().cuGetErrorName != nullptr) {
        driver().cuGetErrorName(status, &name);
    }
    if (driver().cuGetErrorString != nullptr) {
        driver().cuGetErrorString(status, &text);
    }
    throw CudaError(described(call, status, name, text), status);
}

OnDevice::OnDevice(int device) {
    check_runtime("cudaGetDevice", driver().cudaGetDevice(&before_));
    // Also if it is current already: a thread that never called CUDA has no context until then.
    check_runtime("cudaSetDevice", driver().cudaSetDevice(device));
}

OnDevice::~OnDevice() {
    cuda::absorbed(driver().cudaSetDevice(before_));
}

} // namespace tracehook::ipc
