#include "cuda/virtual_memory.h"

#include "elf/loaded.h"

#include <dlfcn.h>

namespace tracehook::cuda {

namespace {

template <typename Pointer>
void find_in_driver(Pointer& target, void* library, const char* name) noexcept {
    void* found = dlsym(RTLD_DEFAULT, name); // a preloaded one comes before all
    if (found == nullptr && library != nullptr) {
        found = dlsym(library, name);
    }
    target = reinterpret_cast<Pointer>(found);
}

VirtualMemory load_virtual_memory() noexcept {
    void* library = elf::loaded_library({"libcuda.so.1"});
    if (library == nullptr) {
        library = dlopen("libcuda.so.1", RTLD_LAZY); // CUDA is up, so the runtime has one
    }
    VirtualMemory found;
#define FIND(name) find_in_driver(found.name, library, #name)
    FIND(cuMemCreate);
    FIND(cuMemRetainAllocationHandle);
    FIND(cuMemExportToShareableHandle);
    FIND(cuMemImportFromShareableHandle);
    FIND(cuMemAddressReserve);
    FIND(cuMemAddressFree);
    FIND(cuMemMap);
    FIND(cuMemUnmap);
    FIND(cuMemSetAccess);
    FIND(cuMemGetAccess);
    FIND(cuMemRelease);
    FIND(cuMemGetAddressRange_v2);
    FIND(cuMemGetAllocationPropertiesFromHandle);
    FIND(cuDeviceGetAttribute);
    FIND(cuPointerGetAttribute);
#undef FIND
    return found;
}

} // namespace

bool VirtualMemory::passes_memory() const noexcept {
    return cuMemCreate != nullptr && cuMemRetainAllocationHandle != nullptr &&
           cuMemExportToShareableHandle != nullptr && cuMemImportFromShareableHandle != nullptr &&
           cuMemAddressReserve != nullptr && cuMemAddressFree != nullptr && cuMemMap != nullptr &&
           cuMemUnmap != nullptr && cuMemSetAccess != nullptr && cuMemRelease != nullptr &&
           cuMemGetAddressRange_v2 != nullptr && cuMemGetAllocationPropertiesFromHandle != nullptr;
}

const VirtualMemory& virtual_memory() noexcept {
    static const VirtualMemory loaded = load_virtual_memory(); // trivial: good to the end
    return loaded;
}

} // namespace tracehook::cuda
