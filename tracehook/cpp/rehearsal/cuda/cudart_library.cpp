// The runtime's functions about code that a program loads, and what the driver needs for its own.
#include "cuda_abi.h"
#include "driver_support.h"
#include "kernel.h"
#include "runtime_call.h"

namespace tracehook::rehearsal::cuda {
namespace {

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

// A call of the driver, which leaves no error to the runtime.
template <typename Body> Status driver_call(Body&& body) noexcept {
    Status status = enter_runtime();
    if (status == kSuccess) {
        try {
            status = body();
        } catch (...) {
            status = kMemoryAllocation;
        }
    }
    return status;
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

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

EMU_EXPORT int emu_module_load(void** module, int for_any_device) {
    return driver_call(
        [&] { return load(module, for_any_device != 0 ? kAnyDevice : current_device()); });
}

EMU_EXPORT int emu_module_unload(void* module) {
    return driver_call([&] { return unload(module); });
}

EMU_EXPORT int emu_module_kernel(void** kernel, void* module, const char* name) {
    return driver_call([&] { return kernel_in(module, name, kernel); });
}

EMU_EXPORT int emu_kernel_name(void* handle, const char** name) {
    return driver_call([&] {
        const std::shared_ptr<Kernel> kernel = kernels().find(handle);
        if (kernel == nullptr) {
            return kInvalidResourceHandle;
        }
        *name = kernel->name.c_str();
        return kSuccess;
    });
}

EMU_EXPORT int emu_kernel_launch(void* handle, void* stream) {
    return driver_call([&] {
        const std::shared_ptr<Kernel> kernel = kernels().find(handle);
        return kernel == nullptr ? kInvalidResourceHandle : launch_kernel(stream, kernel);
    });
}

EMU_EXPORT int emu_kernel_blocks_at_once(int block_size) {
    return blocks_at_once(block_size);
}
