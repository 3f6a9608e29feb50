#include "process_end.h"

#include "calls.h"
#include "exports.h"
#include "handles.h"
#include "rehearsal/cuda/device.h"
#include "rules.h"
#include "settings.h"

#include <atomic>
#include <cstdio>
#include <iostream>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {

namespace {

std::atomic<bool> ending{false};

// Rule I1. On the freeing thread; it needs no communicator, so it is watched from the start.
void observe_open_free(std::uintptr_t base, std::size_t size, int process) {
    report(Rule::kI1, {settings().rank, nullptr, 0},
           "memory [%#zx, %#zx) is freed, process %d has it open by cudaIpcOpenMemHandle", base,
           base + size, process);
}

__attribute__((constructor)) void begin() {
    // What comes last is held first, and a child that ends normally does not answer for its parent.
    part_violations_at_forks();
    part_calls_at_forks();
    emu_set_open_free_observer(observe_open_free);
}

// Runs after everything that uses this library has been torn down, and before the emulated device
// is.
__attribute__((destructor)) void end() {
    ending = true;
    std::size_t registrations = 0;
    const auto live = live_communicators();
    for (const auto& communicator : live) {
        registrations += communicator->registrations().size();
    }
    write_summary(registrations, live.size());
    emu_tell_of_kernels(settings().rank);
    if (violation_count() != 0) {
        print_violations();
        std::fflush(nullptr);
        _exit(kExitRuleBroken);
    }
}

} // namespace

bool process_ending() {
    return ending.load(std::memory_order_relaxed);
}

TRACEHOOK_EXPORTED void emu_nccl_end_process(int status, void* /*unused*/) {
    end();
    std::cout.flush();
    std::fflush(nullptr);
    _exit(status);
}

} // namespace tracehook::rehearsal::nccl
