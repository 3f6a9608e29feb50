// The wait before a scope: until torch may give out all memory of our pools that the program gave
// back (windows/pending_blocks.h).
#pragma once

#include "torch/hook_library.h"
#include "windows/pending_blocks.h"

namespace tracehook::torch {

// Any thread, without the GIL and without locks: it takes the allocator's, and sleeps. Not while
// the thread captures. False if streams still use some of it after ten seconds.
//
// While the thread captures, torch does not look which streams are done; before 2.13 not while any
// pool of the device is begun (use_mem_pool) or any thread captures either. While any thread of the
// device is in a scope, torch looks and learns nothing (torch/held_uses.h). Inside of a scope
// nothing is waited for: what was pending before it is gone, and what is given back in it stays
// pending until its end, on all ranks. For scopes of other threads it waits as long as one of them
// ends within 50 ms, since their threads may wait for this one; for what else keeps torch from
// looking not at all.
bool settle(const HookLibrary& hook_library, const windows::PendingBlocks& pending,
            int device) noexcept;

} // namespace tracehook::torch
