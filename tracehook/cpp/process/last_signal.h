// Notes in the ring which signal ends the process, and who sent it: a launcher that ends the ranks
// which are left, or a fault of the rank's own. SIGKILL and _exit leave no note; that tells them
// apart.
//
// Each handler is set only where the system's default stands, so it changes nothing but the note:
// it puts the default back and lets the signal come again. Whoever sets a handler later takes its
// place.
#pragma once

namespace tracehook::process {

// Runs on the thread that a signal other than SIGHUP ends the process on, after the note: a
// launcher ends the ranks that are left, torch's watchdog a rank that hangs, a fault the rank's own
// program. Async-signal-safe, and soon over.
void set_last_act(void (*act)() noexcept) noexcept;

// Once for each process; the handlers stay. They write to the ring of Process::current().
void note_signals();

} // namespace tracehook::process
