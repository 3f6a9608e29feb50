#include "ipc/handle.h"

namespace tracehook::ipc {

namespace {

// Keeps memory of the driver's virtual kind while it lives; empty for memory of cudaMalloc.
class Retained {
  public:
    explicit Retained(std::uintptr_t base) noexcept {
        held_ = driver().passes_files() &&
                driver().cuMemRetainAllocationHandle(&memory, reinterpret_cast<void*>(base)) == 0;
    }
    ~Retained() {
        if (held_) {
            driver().cuMemRelease(memory);
        }
    }
    Retained(const Retained&) = delete;
    Retained& operator=(const Retained&) = delete;

    explicit operator bool() const noexcept { return held_; }
    Memory memory = 0;

  private:
    bool held_ = false;
};

// The bytes of the one allocation behind the segment; throws if there are several.
std::size_t mapped_size(std::uintptr_t base, std::size_t size) {
    std::uintptr_t start = 0;
    std::size_t bytes = 0;
    check_driver("cuMemGetAddressRange", driver().cuMemGetAddressRange_v2(&start, &bytes, base));
    if (start != base || bytes < size) {
        throw std::runtime_error("its segment consists of several allocations of the driver, as "
                                 "expandable segments do: it cannot be shared with a peer");
    }
    return bytes;
}

} // namespace

Exported export_segment(std::uintptr_t base, std::size_t size, int device) {
    const OnDevice guard(device);
    const BesideCaptures relaxed;
    if (const Retained retained{base}) {
        Properties properties;
        check_driver("cuMemGetAllocationPropertiesFromHandle",
                     driver().cuMemGetAllocationPropertiesFromHandle(&properties, retained.memory));
        if ((properties.handle_types & kPosixFile) == 0) {
            throw std::runtime_error("its memory was not made for sharing (it has no POSIX file "
                                     "descriptors): it cannot be shared with a peer");
        }
        return {HandleKind::kFile, mapped_size(base, size), {}};
    }
    Exported exported{HandleKind::kRuntime, size, {}};
    check_runtime("cudaIpcGetMemHandle",
                  driver().cudaIpcGetMemHandle(&exported.handle, reinterpret_cast<void*>(base)));
    return exported;
}

int export_file(std::uintptr_t base) {
    const Retained retained{base};
    if (!retained) {
        throw std::runtime_error("the segment is gone");
    }
    int file = -1;
    check_driver("cuMemExportToShareableHandle",
                 driver().cuMemExportToShareableHandle(&file, retained.memory, kPosixFile, 0));
    return file;
}

} // namespace tracehook::ipc
