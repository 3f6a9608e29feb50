#include "process/last_signal.h"

#include "process/process.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <initializer_list>

namespace tracehook::process {

namespace {

std::atomic<void (*)() noexcept> last_act{nullptr};

// Whether the instruction that the handler returns to raises the signal again. A fault does, and
// then a core dump shows its address. Of what anybody sends nothing comes again: neither the
// kernel's own (SIGHUP of a terminal, with SI_KERNEL), nor memory that broke where nobody reads.
bool comes_again(int number, const siginfo_t* info) {
    const bool is_fault =
        number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
    return is_fault && info != nullptr && info->si_code > 0 &&
           !(number == SIGBUS && info->si_code == BUS_MCEERR_AO);
}

// Async-signal-safe: loads, stores, clock_gettime, getpid, sigaction, raise, and the last act.
void note(int number, siginfo_t* info, void* /*context*/) {
    const int saved = errno;
    if (Process* const process = Process::current()) {
        // A fault has an address where a sender would stand.
        const bool was_sent = info != nullptr && info->si_code <= 0;
        process->ring().note_signal(number, was_sent ? info->si_pid : 0);
    }
    const auto act = last_act.load(std::memory_order_acquire);
    if (act != nullptr && number != SIGHUP) {
        act();
    }
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    sigaction(number, &standard, nullptr);
    if (!comes_again(number, info)) {
        raise(number); // blocked until this returns
    }
    errno = saved;
}

} // namespace

void set_last_act(void (*act)() noexcept) noexcept {
    last_act.store(act, std::memory_order_release);
}

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

} // namespace tracehook::process
