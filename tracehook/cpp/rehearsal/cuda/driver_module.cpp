// The driver's functions about code that a program loads: modules, libraries, and the kernels in
// them. The code is not looked at.
//
// Any thread. In a forked child the functions fail as the runtime's do.
#include "device_properties.h"
#include "driver_context.h"
#include "gpu.h"
#include "kernel.h"

#include <cstdio>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr int kFileNotFound = 301;

// What CUfunction_attribute counts.
constexpr int kMaxThreads = 0, kRegisters = 4, kPtxVersion = 5, kBinaryVersion = 6;
constexpr int kDynamicShared = 8, kNumberOfAttributes = 16;

int attribute_of(int attribute, int* value) {
    switch (attribute) {
    case kMaxThreads:
        *value = kThreadsPerBlock;
        return kSuccess;
    case kRegisters:
        *value = kKernelRegisters;
        return kSuccess;
    case kPtxVersion:
    case kBinaryVersion:
        *value = kernel_architecture();
        return kSuccess;
    case kDynamicShared:
        *value = gpu().shared_per_block_kib << 10;
        return kSuccess;
    default:
        *value = 0;
        return attribute > 0 && attribute < kNumberOfAttributes ? kSuccess : kInvalidValue;
    }
}

// The kernel must be alive.
template <typename Body> int about(void* kernel, Body&& body) {
    const char* name = nullptr;
    const int status = emu_kernel_name(kernel, &name);
    return status == kSuccess ? body(name) : status;
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cuModuleLoadData(void** module, const void* code) {
    if (module == nullptr || code == nullptr) {
        return kInvalidValue;
    }
    return emu_device_active(emu_current_device()) != 0 ? emu_module_load(module, 0) : kNoContext;
}

EMU_EXPORT int cuModuleLoadDataEx(void** module, const void* code, unsigned, int*, void**) {
    return cuModuleLoadData(module, code);
}

EMU_EXPORT int cuModuleLoadFatBinary(void** module, const void* code) {
    return cuModuleLoadData(module, code);
}

EMU_EXPORT int cuModuleLoad(void** module, const char* path) {
    std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "rb");
    if (file == nullptr) {
        return path == nullptr ? kInvalidValue : kFileNotFound;
    }
    std::fclose(file);
    return cuModuleLoadData(module, path);
}

EMU_EXPORT int cuModuleUnload(void* module) {
    return emu_module_unload(module);
}

EMU_EXPORT int cuModuleGetFunction(void** kernel, void* module, const char* name) {
    return kernel == nullptr || name == nullptr ? kInvalidValue
                                                : emu_module_kernel(kernel, module, name);
}

EMU_EXPORT int cuLibraryLoadData(void** library, const void* code, int*, void**, unsigned, int*,
                                 void**, unsigned) {
    return library == nullptr || code == nullptr ? kInvalidValue : emu_module_load(library, 1);
}

EMU_EXPORT int cuLibraryUnload(void* library) {
    return emu_module_unload(library);
}

EMU_EXPORT int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    return cuModuleGetFunction(kernel, library, name);
}

// A kernel of a library is launched as a function is; the two handles are one here.
EMU_EXPORT int cuKernelGetFunction(void** function, void* kernel) {
    return about(kernel, [&](const char*) {
        *function = kernel;
        return kSuccess;
    });
}

EMU_EXPORT int cuFuncGetName(const char** name, void* kernel) {
    return emu_kernel_name(kernel, name);
}

EMU_EXPORT int cuKernelGetName(const char** name, void* kernel) {
    return emu_kernel_name(kernel, name);
}

EMU_EXPORT int cuFuncGetAttribute(int* value, int attribute, void* kernel) {
    return about(kernel, [&](const char*) { return attribute_of(attribute, value); });
}

EMU_EXPORT int cuKernelGetAttribute(int* value, int attribute, void* kernel, int) {
    return cuFuncGetAttribute(value, attribute, kernel);
}

EMU_EXPORT int cuFuncSetAttribute(void* kernel, int attribute, int value) {
    return about(kernel, [&](const char*) {
        return attribute == kDynamicShared &&
                       (value < 0 || value > (gpu().shared_per_block_kib << 10))
                   ? kInvalidValue
                   : kSuccess;
    });
}

EMU_EXPORT int cuKernelSetAttribute(int attribute, int value, void* kernel, int) {
    return cuFuncSetAttribute(kernel, attribute, value);
}

EMU_EXPORT int cuFuncSetCacheConfig(void* kernel, int) {
    return about(kernel, [](const char*) { return kSuccess; });
}

// To link code is not emulated. torch loads none of its compilers' kernels without these names.
EMU_EXPORT int cuLinkCreate_v2(unsigned, int*, void**, void**) {
    return kNotSupported;
}

EMU_EXPORT int cuLinkAddData_v2(void*, int, void*, size_t, const char*, unsigned, int*, void**) {
    return kNotSupported;
}

EMU_EXPORT int cuLinkComplete(void*, void**, size_t*) {
    return kNotSupported;
}
