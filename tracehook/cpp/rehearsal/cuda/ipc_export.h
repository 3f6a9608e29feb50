// Memory of cudaMalloc that other processes may open: what they are told of it, and who has it
// open.
//
// The file behind the memory holds a number for each range that was exported, which goes when the
// range is freed: so a stale handle is known. Who opens a range locks one byte for it, far behind
// the end of the file, at the place of the range plus its own process id. The lock is held by what
// is mapped, so it ends with it, however the process ends.
//
// Any thread, except in a forked child. Never throws, apart from std::bad_alloc.
#pragma once

#include "leaked.h"
#include "memory.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include <sys/types.h>

namespace tracehook::rehearsal::cuda {

// What a cudaIpcMemHandle_t says.
struct ExportedRange {
    pid_t process;
    int file;
    uint64_t offset;
    uint64_t size;
    uint64_t number;
    uint64_t number_at; // where the file holds the number while the range is not freed

    bool operator==(const ExportedRange&) const = default;
};

class IpcExports {
  public:
    // Called, on the freeing thread, when memory is freed that another process has open.
    using Observer = void (*)(uintptr_t base, size_t size, int process);

    IpcExports();
    static IpcExports& instance() { return leaked<IpcExports>(); }

    // What others need to open `allocation`, always the same while it lives.
    ExportedRange publish(const Allocation& allocation);

    // Makes what was published of `allocation` invalid. To be called before the memory goes.
    void withdraw(const Allocation& allocation);

    // What an importer does with the file of a range, before it looks at the number: says that this
    // process has the range open for as long as something is mapped through `file`.
    static bool mark_open(int file, const ExportedRange& range);

    // Whether the range was not freed yet.
    static bool is_live(int file, const ExportedRange& range);

    void observe(Observer observer) { observer_.store(observer); }

  private:
    std::atomic<Observer> observer_{nullptr};

    // Protects everything below. Nothing is locked while it is held.
    std::mutex mutex_;
    uint64_t last_number_;
    std::map<uint64_t, ExportedRange> published_; // by offset
};

} // namespace tracehook::rehearsal::cuda
