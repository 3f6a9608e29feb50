#include "ipc/mapping.h"

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

} // namespace

Mapping open_runtime(const RuntimeHandle& handle, std::size_t size, int device) {
    constexpr unsigned kLazyPeerAccess = 1; // cudaIpcMemLazyEnablePeerAccess
    const OnDevice guard(device);
    const BesideCaptures relaxed;
    void* address = nullptr;
    check_runtime("cudaIpcOpenMemHandle",
                  driver().cudaIpcOpenMemHandle(&address, handle, kLazyPeerAccess));
    return {HandleKind::kRuntime, reinterpret_cast<std::uintptr_t>(address), size, device, true};
}

Mapping open_file(int file, std::size_t size, int device, bool writable) {
    const Driver& cuda = driver();
    if (!cuda.passes_files()) {
        throw std::runtime_error("this CUDA driver cannot map memory from a file descriptor");
    }
    const OnDevice guard(device);
    const BesideCaptures relaxed;
    Memory memory = 0;
    void* const named = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
    check_driver("cuMemImportFromShareableHandle",
                 cuda.cuMemImportFromShareableHandle(&memory, named, kPosixFile));
    std::uintptr_t address = 0;
    bool mapped = false;
    try {
        check_driver("cuMemAddressReserve", cuda.cuMemAddressReserve(&address, size, 0, 0, 0));
        check_driver("cuMemMap", cuda.cuMemMap(address, size, 0, memory, 0));
        mapped = true;
        set_access(address, size, device, writable);
    } catch (...) {
        if (mapped) {
            cuda.cuMemUnmap(address, size);
        }
        if (address != 0) {
            cuda.cuMemAddressFree(address, size);
        }
        cuda.cuMemRelease(memory);
        throw;
    }
    cuda.cuMemRelease(memory); // the mapping keeps it
    return {HandleKind::kFile, address, size, device, writable};
}

void allow_writes(Mapping& mapping) {
    if (!mapping.writable) {
        const OnDevice guard(mapping.device);
        const BesideCaptures relaxed;
        set_access(mapping.address, mapping.size, mapping.device, true);
        mapping.writable = true;
    }
}

void close(const Mapping& mapping) {
    const OnDevice guard(mapping.device);
    const BesideCaptures relaxed;
    if (mapping.kind == HandleKind::kRuntime) {
        check_runtime("cudaIpcCloseMemHandle",
                      driver().cudaIpcCloseMemHandle(reinterpret_cast<void*>(mapping.address)));
        return;
    }
    check_driver("cuMemUnmap", driver().cuMemUnmap(mapping.address, mapping.size));
    check_driver("cuMemAddressFree", driver().cuMemAddressFree(mapping.address, mapping.size));
}

} // namespace tracehook::ipc
