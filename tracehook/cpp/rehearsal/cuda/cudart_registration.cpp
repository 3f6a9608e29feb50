// What the compiler's code says of the kernels in a library while that is loaded and unloaded.
#include "cuda_abi.h"
#include "kernel.h"

#include <string_view>

#include <dlfcn.h>

namespace tracehook::rehearsal::cuda {
namespace {

// Stands for all libraries of torch, whose kernels are only named.
void* of_torch = nullptr;

bool is_of_torch(const void* code) {
    Dl_info found;
    if (dladdr(code, &found) == 0 || found.dli_fname == nullptr) {
        return false;
    }
    const std::string_view path = found.dli_fname;
    return path.substr(path.rfind('/') + 1).starts_with("libtorch_");
}

} // namespace

EMU_EXPORT void** __cudaRegisterFatBinary(void*) {
    if (is_of_torch(__builtin_return_address(0))) {
        return &of_torch;
    }
    return static_cast<void**>(modules().insert(std::make_shared<Module>(kAnyDevice)));
}

EMU_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}

EMU_EXPORT void __cudaUnregisterFatBinary(void** library) {
    modules().remove(library);
}

EMU_EXPORT char __cudaInitModule(void**) {
    return 1;
}

EMU_EXPORT void __cudaRegisterFunction(void** library, const char* function, char*,
                                       const char* name, int, void*, void*, void*, void*, int*) {
    if (library == &of_torch) {
        name_kernel_of_torch(function, name);
        return;
    }
    if (const std::shared_ptr<Module> module = modules().find(library)) {
        module->add(function, name, readable(name));
    }
}

} // namespace tracehook::rehearsal::cuda
