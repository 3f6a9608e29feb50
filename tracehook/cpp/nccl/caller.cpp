#include "nccl/caller.h"

#include <array>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>

namespace tracehook::nccl {

namespace {

// Whether one of the frames of this thread is such a one.
template <typename Wanted> bool any_frame(Wanted&& wanted) noexcept {
    constexpr int kFrames = 48;
    std::array<void*, kFrames> frames;
    const int count = backtrace(frames.data(), kFrames);
    for (int frame = 0; frame < count; ++frame) {
        Dl_info facts{};
        if (dladdr(frames[static_cast<std::size_t>(frame)], &facts) != 0 && wanted(facts)) {
            return true;
        }
    }
    return false;
}

} // namespace

bool called_by_nccl2() noexcept {
    // Its classes are exported by libtorch_cuda, so that their names are found; what lies between
    // them and NCCL is not.
    return any_frame([](const Dl_info& frame) {
        return frame.dli_sname != nullptr &&
               std::strstr(frame.dli_sname, "N4c10d5nccl2") != nullptr;
    });
}

bool called_by_allocator() noexcept {
    return any_frame([](const Dl_info& frame) {
        return frame.dli_fname != nullptr && std::strstr(frame.dli_fname, "libc10_cuda") != nullptr;
    });
}

} // namespace tracehook::nccl
