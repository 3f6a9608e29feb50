// Windows that others than tracehook register: torch's register_mem_pool, servers, C++ extensions.
//
// Before NCCL is called, the ranks of the communicator compare what each is about to register. A
// rank that differs, or does not come, is an error on all ranks instead of a wait without end or a
// wrong sum. The one who compares is Python (symmetric_memory/guard.py); it makes the call into
// NCCL in between, and says from which collective on the window counts.
//
// On the thread of the program's call, which may hold the GIL and locks of the program. Where that
// thread is inside torch's caching allocator, so that its lock would be held while ranks wait for
// each other, nobody is asked: the window is noted in the log, and that is all.
#pragma once

#include "nccl/abi.h"
#include "windows/communicator_windows.h"

#include <functional>
#include <string>

namespace tracehook::nccl {

// What the program asks NCCL for.
struct WindowRequest {
    registrar::CommunicatorPtr communicator;
    void* buffer;
    std::size_t size;
    int flags;
    Window* window; // where NCCL writes the handle: at once, unless a group is open
    bool in_group;  // of NCCL's calls: the handle comes at its end

    // Whether NCCL took the call, and makes the window later.
    bool comes_later(int result) const noexcept {
        return result == kInProgress || (result == kSuccess && in_group);
    }
};

// Makes the call, inside the gate; returns NCCL's answer.
using MakeWindow = std::function<int()>;

// Returns why the call is refused on this rank, or an empty text and in `result` what the caller
// hears. Has called `make` at most once.
using WindowGuard =
    std::function<std::string(const WindowRequest& request, const MakeWindow& make, int& result)>;
void set_window_guard(WindowGuard guard);

// The whole of a program's call. Returns what the caller hears.
int register_guarded(const WindowRequest& request, const MakeWindow& make);

} // namespace tracehook::nccl
