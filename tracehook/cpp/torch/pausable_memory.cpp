#include "torch/pausable_memory.h"

#include "cuda/virtual_memory.h"

#include <atomic>

namespace tracehook::torch {

namespace {

constexpr int kSuccess = 0;

std::atomic<registrar::Registrar*> told{nullptr};

// Memory can be used from here on.
int on_cuMemSetAccess(std::uintptr_t address, std::size_t size, const cuda::Access* access,
                      std::size_t count) {
    const int status = cuda::virtual_memory().cuMemSetAccess(address, size, access, count);
    if (status == kSuccess) {
        told.load(std::memory_order_acquire)->memory_mapped(address, size);
    }
    return status;
}

int on_cuMemUnmap(std::uintptr_t address, std::size_t size) {
    registrar::Registrar& registrar = *told.load(std::memory_order_acquire);
    const bool had_memory = registrar.memory_unmapped(address, size);
    const int status = cuda::virtual_memory().cuMemUnmap(address, size);
    if (status != kSuccess && had_memory) {
        registrar.memory_mapped(address, size); // it is still there
    }
    return status;
}

template <auto Function> void* in_driver() noexcept {
    return reinterpret_cast<void*>(cuda::virtual_memory().*Function);
}

} // namespace

std::vector<elf::Beside> pausing_calls(registrar::Registrar& registrar) {
    told.store(&registrar, std::memory_order_release);
#define BESIDE(name)                                                                               \
    {                                                                                              \
        {#name, reinterpret_cast<void*>(&on_##name)}, &in_driver<&cuda::VirtualMemory::name>       \
    }
    return {BESIDE(cuMemSetAccess), BESIDE(cuMemUnmap)};
#undef BESIDE
}

} // namespace tracehook::torch
