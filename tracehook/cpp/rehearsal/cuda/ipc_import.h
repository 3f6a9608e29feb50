// Memory of other processes that this one has open, by what their handles say.
//
// Any thread, except in a forked child, which does not inherit the mappings. Never throws, apart
// from std::bad_alloc.
#pragma once

#include "cuda_abi.h"
#include "ipc_export.h"

#include <map>
#include <mutex>

namespace tracehook::rehearsal::cuda {

class IpcImports {
  public:
    static IpcImports& instance();

    // Where the range is, as memory of `device`: where it is already if that device has it open,
    // with one opener more.
    Status open(void** pointer, const ExportedRange& range, int device);

    // One opener less; the last takes the mapping away.
    Status close(void* pointer);

  private:
    struct Opened {
        ExportedRange range;
        int device;
        int openers;
    };

    IpcImports() = default;

    // Protects opened_. Comes before the mutex of the memory.
    std::mutex mutex_;
    std::map<void*, Opened> opened_;
};

} // namespace tracehook::rehearsal::cuda
