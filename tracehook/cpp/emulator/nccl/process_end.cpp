#include "process_end.h"

#include "calls.h"
#include "handles.h"
#include "rules.h"

#include <atomic>
#include <cstdio>
#include <pthread.h>
#include <unistd.h>

namespace tracehook::emulator::nccl {

namespace {

std::atomic<bool> ending{false};

// A forked child that ends normally must not answer for its parent.
void forget_parent() {
    forget_calls();
    forget_violations();
}

__attribute__((constructor)) void begin() {
    pthread_atfork(nullptr, nullptr, forget_parent);
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

} // namespace tracehook::emulator::nccl
