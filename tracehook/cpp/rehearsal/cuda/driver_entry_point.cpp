// How the driver and the runtime hand out functions of the driver by name.
//
// Any thread. Everything is of the newest version that the emulation has, whatever version is asked
// for: but for cuGetProcAddress itself, older forms are called in the same way.
#include "runtime_call.h"

#include <string>

#include <dlfcn.h>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr int kFound = 0;
constexpr int kNotFound = 1;
constexpr int kFiveArguments = 12000; // the version since which cuGetProcAddress has them

// Headers spell the newest form of a function without its suffix.
void* function_called(const char* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) {
        return nullptr;
    }
    void* const newest = dlsym(driver, (std::string(name) + "_v2").c_str());
    return newest != nullptr ? newest : dlsym(driver, name);
}

} // namespace

EMU_EXPORT int cuGetProcAddress_v2(const char*, void**, int, uint64_t, int*);

EMU_EXPORT int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

EMU_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t,
                                   int* result) {
    if (name == nullptr || function == nullptr) {
        return kInvalidValue;
    }
    try {
        *function = version < kFiveArguments && name == std::string("cuGetProcAddress")
                        ? reinterpret_cast<void*>(cuGetProcAddress)
                        : function_called(name);
    } catch (...) {
        return kMemoryAllocation;
    }
    give(result, *function == nullptr ? kNotFound : kFound);
    return *function == nullptr ? kSymbolNotFound : kSuccess;
}

// Tables of functions that have no names. Libraries that look for one take a refusal, but not that
// this function is missing.
EMU_EXPORT int cuGetExportTable(const void** table, const void*) {
    *table = nullptr;
    return kSymbolNotFound;
}

EMU_EXPORT int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                unsigned long long, int* result) {
    return query_call([&] {
        *function = nullptr;
        cuGetProcAddress_v2(name, function, kCudaVersion, 0, nullptr);
        give(result, *function == nullptr ? kNotFound : kFound);
    });
}

EMU_EXPORT int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                       int* result) {
    return cudaGetDriverEntryPointByVersion(name, function, kCudaVersion, flags, result);
}

} // namespace tracehook::rehearsal::cuda
