// How the runtime hands out functions of the driver: by name, from the emulated libcuda.so.1 next
// to it.
#include "cuda_abi.h"
#include "runtime_call.h"

#include <dlfcn.h>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr int kFound = 0;
constexpr int kSymbolNotFound = 1;

using GetAddress = int (*)(const char*, void**, int, uint64_t, int*);

void* driver_function(const char* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    static const auto get_address =
        driver == nullptr ? nullptr
                          : reinterpret_cast<GetAddress>(dlsym(driver, "cuGetProcAddress_v2"));
    void* function = nullptr;
    if (get_address != nullptr) {
        get_address(name, &function, kCudaVersion, 0, nullptr);
    }
    return function;
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                unsigned long long, int* result) {
    return query_call([&] {
        *function = driver_function(name);
        if (result != nullptr) {
            *result = *function == nullptr ? kSymbolNotFound : kFound;
        }
        return kSuccess;
    });
}

EMU_EXPORT int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                       int* result) {
    return cudaGetDriverEntryPointByVersion(name, function, kCudaVersion, flags, result);
}
