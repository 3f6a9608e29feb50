#include "cuda/runtime.h"

#include "elf/loaded.h"

#include <dlfcn.h>

namespace tracehook::cuda {

namespace {

// The global scope first: a preloaded runtime comes before all.
template <typename Pointer> void find(Pointer& target, void* library, const char* name) noexcept {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (found == nullptr && library != nullptr) {
        found = dlsym(library, name);
    }
    target = reinterpret_cast<Pointer>(found);
}

Runtime load() noexcept {
    void* const library =
        elf::loaded_library({"libcudart.so.13", "libcudart.so.12", "libcudart.so"});
    Runtime found;
#define FIND(name) find(found.name, library, #name)
    FIND(cudaGetDevice);
    FIND(cudaSetDevice);
    FIND(cudaDeviceSynchronize);
    FIND(cudaGetLastError);
    FIND(cudaThreadExchangeStreamCaptureMode);
    FIND(cudaEventCreateWithFlags);
    FIND(cudaEventQuery);
    FIND(cudaEventRecord);
    FIND(cudaHostRegister);
    FIND(cudaHostUnregister);
#undef FIND
    return found;
}

} // namespace

const Runtime& runtime() noexcept {
    static const Runtime loaded = load(); // trivial: good until the last thread ends
    return loaded;
}

int absorbed(int status) noexcept {
    if (status != 0 && runtime().cudaGetLastError != nullptr) {
        runtime().cudaGetLastError();
    }
    return status;
}

void BesideCaptures::exchange() noexcept {
    if (runtime().cudaThreadExchangeStreamCaptureMode != nullptr) {
        absorbed(runtime().cudaThreadExchangeStreamCaptureMode(&mode_));
    }
}

} // namespace tracehook::cuda
