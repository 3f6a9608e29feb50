#include "ipc/mapping.h"

#include "cuda/runtime.h"

namespace tracehook::ipc {

namespace {

void set_access(std::uintptr_t address, std::size_t size, int device, bool writable) {
    Access access{{1, device}, writable ? kReadWrite : kReadOnly};
    const auto set = driver().cuMemSetAccess;
    int status = set(address, size, &access, 1);
    if (status != 0 && !writable) {
        // Not every driver can map for reading only; the tensor itself refuses writes all the same.
        access.flags = kReadWrite;
        status = set(address, size, &access, 1);
    }
    check_driver("cuMemSetAccess", status);
}

// Ends the mappings of `count` allocations, one by one as they were made, and gives the addresses
// back, unless something is mapped there still. Returns the first failure.
int unmap_allocations(std::uintptr_t address, std::size_t size, std::size_t allocation,
                      std::size_t count) {
    const Driver& cuda = driver();
    int first = 0;
    for (std::size_t index = 0; index < count; ++index) {
        const int status = cuda.cuMemUnmap(address + index * allocation, allocation);
        first = first == 0 ? status : first;
    }
    return first == 0 ? cuda.cuMemAddressFree(address, size) : first;
}

Memory import(void* shared, int type, int device) {
    const Driver& cuda = driver();
    if (!cuda.passes_memory()) {
        throw std::runtime_error("this CUDA driver cannot map memory of another process");
    }
    const OnDevice guard(device);
    const cuda::BesideCaptures relaxed;
    Memory memory = 0;
    check_driver("cuMemImportFromShareableHandle",
                 cuda.cuMemImportFromShareableHandle(&memory, shared, type));
    return memory;
}

} // namespace

void import_file(Allocations& into, int file, int device) {
    into.reserve(into.size() + 1);
    void* const named = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
    into.push_back(import(named, kPosixFile, device));
}

void import_fabric(Allocations& into, const FabricHandle& handle, int device) {
    into.reserve(into.size() + 1);
    FabricHandle copied = handle; // the call takes no constant
    into.push_back(import(copied.data(), kFabric, device));
}

void release(Allocations& allocations) noexcept {
    for (const Memory memory : allocations) {
        driver().cuMemRelease(memory);
    }
    allocations.clear();
}

Mapping map_runtime(const RuntimeHandle& handle, std::size_t size, int device) {
    constexpr unsigned kLazyPeerAccess = 1; // cudaIpcMemLazyEnablePeerAccess
    const OnDevice guard(device);
    const cuda::BesideCaptures relaxed;
    void* address = nullptr;
    check_runtime("cudaIpcOpenMemHandle",
                  driver().cudaIpcOpenMemHandle(&address, handle, kLazyPeerAccess));
    const auto mapped = reinterpret_cast<std::uintptr_t>(address);
    return {HandleKind::kRuntime, mapped, size, size, device, true};
}

Mapping map_allocations(const Allocations& allocations, HandleKind kind, std::size_t size,
                        int device, bool writable) {
    if (allocations.empty() || size % allocations.size() != 0) {
        throw std::runtime_error(std::to_string(allocations.size()) + " handles came for " +
                                 std::to_string(size) + " bytes");
    }
    const Driver& cuda = driver();
    const OnDevice guard(device);
    const cuda::BesideCaptures relaxed;
    const std::size_t allocation = size / allocations.size();
    std::uintptr_t address = 0;
    check_driver("cuMemAddressReserve", cuda.cuMemAddressReserve(&address, size, 0, 0, 0));
    std::size_t mapped = 0;
    try {
        for (const Memory memory : allocations) {
            check_driver("cuMemMap",
                         cuda.cuMemMap(address + mapped * allocation, allocation, 0, memory, 0));
            ++mapped;
        }
        set_access(address, size, device, writable);
    } catch (...) {
        unmap_allocations(address, size, allocation, mapped);
        throw;
    }
    return {kind, address, size, allocation, device, writable};
}

void allow_writes(Mapping& mapping) {
    if (!mapping.writable) {
        const OnDevice guard(mapping.device);
        const cuda::BesideCaptures relaxed;
        set_access(mapping.address, mapping.size, mapping.device, true);
        mapping.writable = true;
    }
}

void unmap(const Mapping& mapping) {
    const OnDevice guard(mapping.device);
    const cuda::BesideCaptures relaxed;
    if (mapping.kind == HandleKind::kRuntime) {
        check_runtime("cudaIpcCloseMemHandle",
                      driver().cudaIpcCloseMemHandle(reinterpret_cast<void*>(mapping.address)));
        return;
    }
    check_driver("cuMemUnmap", unmap_allocations(mapping.address, mapping.size, mapping.allocation,
                                                 mapping.size / mapping.allocation));
}

} // namespace tracehook::ipc
