// The functions of the driver and the runtime about code that a program loads: modules, libraries,
// and the kernels in them. The code is not looked at.
//
// Any thread. In a forked child the functions fail as the runtime's do.
#include "device_properties.h"
#include "driver_context.h"
#include "gpu.h"
#include "kernel.h"
#include "runtime_call.h"

#include <cstdio>

namespace tracehook::rehearsal::cuda {
namespace {

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

Status load(void** module, int device) {
    *module = modules().insert(std::make_shared<Module>(device));
    return kSuccess;
}

Status unload(void* module) {
    return modules().remove(module) != nullptr ? kSuccess : kInvalidResourceHandle;
}

Status kernel_in(void* handle, const char* name, void** kernel) {
    const std::shared_ptr<Module> module = modules().find(handle);
    if (module == nullptr) {
        return kInvalidResourceHandle;
    }
    *kernel = module->kernel(name);
    return kSuccess;
}

// A call about code that was loaded. It leaves no error to the runtime.
template <typename Body> int about_code(Body&& body) noexcept {
    const int status = enter_runtime();
    return status == kSuccess ? guarded(body) : status;
}

// The kernel must be alive.
template <typename Body> int about(void* handle, Body&& body) {
    return about_code([&]() -> int {
        const std::shared_ptr<Kernel> kernel = kernels().find(handle);
        return kernel == nullptr ? kInvalidResourceHandle : outcome(body, *kernel);
    });
}

} // namespace

EMU_EXPORT int cuModuleLoadData(void** module, const void* code) {
    if (module == nullptr || code == nullptr) {
        return kInvalidValue;
    }
    const int device = current_device();
    return device_is_active(device) ? about_code([&] { return load(module, device); }) : kNoContext;
}

EMU_ALIAS(cuModuleLoadDataEx, cuModuleLoadData)
EMU_ALIAS(cuModuleLoadFatBinary, cuModuleLoadData)

EMU_EXPORT int cuModuleLoad(void** module, const char* path) {
    std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "rb");
    if (file == nullptr) {
        return path == nullptr ? kInvalidValue : kFileNotFound;
    }
    std::fclose(file);
    return cuModuleLoadData(module, path);
}

EMU_EXPORT int cuModuleUnload(void* module) {
    return about_code([&] { return unload(module); });
}

EMU_EXPORT int cuModuleGetFunction(void** kernel, void* module, const char* name) {
    return kernel == nullptr || name == nullptr
               ? kInvalidValue
               : about_code([&] { return kernel_in(module, name, kernel); });
}

EMU_EXPORT int cuLibraryLoadData(void** library, const void* code, int*, void**, unsigned, int*,
                                 void**, unsigned) {
    return library == nullptr || code == nullptr
               ? kInvalidValue
               : about_code([&] { return load(library, kAnyDevice); });
}

EMU_ALIAS(cuLibraryUnload, cuModuleUnload)

EMU_ALIAS(cuLibraryGetKernel, cuModuleGetFunction)

// A kernel of a library is launched as a function is; the two handles are one here.
EMU_EXPORT int cuKernelGetFunction(void** function, void* kernel) {
    return about(kernel, [&](const Kernel&) { *function = kernel; });
}

EMU_EXPORT int cuFuncGetName(const char** name, void* kernel) {
    return about(kernel, [&](const Kernel& found) { *name = found.name.c_str(); });
}

EMU_ALIAS(cuKernelGetName, cuFuncGetName)

EMU_EXPORT int cuFuncGetAttribute(int* value, int attribute, void* kernel) {
    return about(kernel, [&](const Kernel&) { return attribute_of(attribute, value); });
}

EMU_ALIAS(cuKernelGetAttribute, cuFuncGetAttribute)

EMU_EXPORT int cuFuncSetAttribute(void* kernel, int attribute, int value) {
    return about(kernel, [&](const Kernel&) {
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
    return about(kernel, [](const Kernel&) {});
}

// To link code is not emulated. torch loads none of its compilers' kernels without these names.
EMU_EXPORT int cuLinkCreate_v2(unsigned, int*, void**, void**) {
    return kNotSupported;
}

EMU_ALIAS(cuLinkAddData_v2, cuLinkCreate_v2)
EMU_ALIAS(cuLinkComplete, cuLinkCreate_v2)

EMU_EXPORT int cudaLibraryLoadData(void** library, const void* code, void*, void**, unsigned, void*,
                                   void**, unsigned) {
    return context_call(
        [&] { return code == nullptr ? kInvalidValue : load(library, kAnyDevice); });
}

EMU_EXPORT int cudaLibraryUnload(void* library) {
    return context_call([&] { return unload(library); });
}

EMU_EXPORT int cudaLibraryGetKernel(void** kernel, void* library, const char* name) {
    return context_call([&] { return kernel_in(library, name, kernel); });
}

} // namespace tracehook::rehearsal::cuda
