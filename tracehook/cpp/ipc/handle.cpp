#include "ipc/handle.h"

#include "cuda/runtime.h"

#include <unistd.h>

namespace tracehook::ipc {

namespace {

// Keeps an allocation of cuMemCreate while it lives; empty for memory of cudaMalloc.
class Retained {
  public:
    explicit Retained(std::uintptr_t address) noexcept {
        if (driver().passes_memory()) {
            status_ =
                driver().cuMemRetainAllocationHandle(&memory, reinterpret_cast<void*>(address));
        }
    }
    ~Retained() {
        if (*this) {
            driver().cuMemRelease(memory);
        }
    }
    Retained(const Retained&) = delete;
    Retained& operator=(const Retained&) = delete;

    explicit operator bool() const noexcept { return status_ == 0; }
    const Retained& checked() const {
        check_driver("cuMemRetainAllocationHandle", status_);
        return *this;
    }
    Memory memory = 0;

  private:
    int status_ = -1;
};

HandleKind kind_of(Memory memory) {
    Properties properties;
    check_driver("cuMemGetAllocationPropertiesFromHandle",
                 driver().cuMemGetAllocationPropertiesFromHandle(&properties, memory));
    if ((properties.handle_types & kPosixFile) != 0) {
        return HandleKind::kFile;
    }
    if ((properties.handle_types & kFabric) != 0) {
        return HandleKind::kFabric;
    }
    throw std::runtime_error("its memory was not made for sharing (it has neither POSIX file "
                             "descriptors nor fabric handles): it cannot be shared with a peer");
}

// Every allocation from that of `address` to that of the last byte.
Exported all_of(std::uintptr_t address, std::size_t size) {
    Exported exported;
    for (std::uintptr_t next = address; next < address + size;) {
        std::uintptr_t start = 0;
        std::size_t bytes = 0;
        check_driver("cuMemGetAddressRange",
                     driver().cuMemGetAddressRange_v2(&start, &bytes, next));
        const Retained retained{start};
        const HandleKind kind = kind_of(retained.checked().memory);
        if (exported.kind == HandleKind::kNone) {
            exported = {kind, start, 0, bytes, {}};
        } else if (kind != exported.kind || bytes != exported.allocation) {
            throw std::runtime_error(
                "its memory consists of allocations of several kinds or sizes: "
                "it cannot be shared with a peer");
        }
        next = start + bytes;
        exported.size = next - exported.base;
    }
    return exported;
}

// Calls `each` with the memory of each allocation, in the order of their addresses.
template <typename Each>
void for_each(std::uintptr_t base, std::size_t allocation, std::size_t count, Each&& each) {
    for (std::size_t index = 0; index < count; ++index) {
        const Retained retained{base + index * allocation};
        each(retained.checked().memory);
    }
}

} // namespace

bool has_handles(std::uintptr_t address) noexcept {
    return static_cast<bool>(Retained{address});
}

Exported export_memory(std::uintptr_t address, std::size_t size, int device) {
    const OnDevice guard(device);
    const cuda::BesideCaptures relaxed;
    if (has_handles(address)) {
        return all_of(address, size);
    }
    Exported exported{HandleKind::kRuntime, address, size, size, {}};
    check_runtime("cudaIpcGetMemHandle",
                  driver().cudaIpcGetMemHandle(&exported.handle, reinterpret_cast<void*>(address)));
    return exported;
}

std::vector<int> export_files(std::uintptr_t base, std::size_t allocation, std::size_t count) {
    std::vector<int> files;
    try {
        for_each(base, allocation, count, [&](Memory memory) {
            int file = -1;
            check_driver("cuMemExportToShareableHandle",
                         driver().cuMemExportToShareableHandle(&file, memory, kPosixFile, 0));
            files.push_back(file);
        });
    } catch (...) {
        for (const int file : files) {
            close(file);
        }
        throw;
    }
    return files;
}

std::vector<FabricHandle> export_fabric(std::uintptr_t base, std::size_t allocation,
                                        std::size_t count) {
    std::vector<FabricHandle> handles;
    for_each(base, allocation, count, [&](Memory memory) {
        FabricHandle& handle = handles.emplace_back();
        check_driver("cuMemExportToShareableHandle",
                     driver().cuMemExportToShareableHandle(handle.data(), memory, kFabric, 0));
    });
    return handles;
}

} // namespace tracehook::ipc
