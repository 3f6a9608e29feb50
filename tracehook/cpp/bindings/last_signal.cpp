#include "bindings/last_signal.h"

#include "bindings/process.h"

#include <cerrno>
#include <csignal>
#include <initializer_list>

namespace tracehook {

namespace {

// Async-signal-safe: loads, stores, clock_gettime, getpid, sigaction and raise.
void note(int number, siginfo_t* info, void* /*context*/) {
    const int saved = errno;
    if (Process* const process = Process::current()) {
        // A fault has an address where a sender would stand.
        const bool was_sent = info != nullptr && info->si_code <= 0;
        process->ring().note_signal(number, was_sent ? info->si_pid : 0);
    }
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    sigaction(number, &standard, nullptr);
    // Blocked until this returns. A fault comes again by itself, at its own instruction.
    if (info == nullptr || info->si_code <= 0) {
        raise(number);
    }
    errno = saved;
}

} // namespace

void note_signals() {
    for (const int number : {SIGTERM, SIGHUP, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        struct sigaction now{};
        if (sigaction(number, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
            now.sa_handler != SIG_DFL) {
            continue;
        }
        struct sigaction ours{};
        ours.sa_sigaction = &note;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&ours.sa_mask);
        sigaction(number, &ours, nullptr);
    }
}

} // namespace tracehook
