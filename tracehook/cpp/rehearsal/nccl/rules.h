// The rules of NCCL, and of memory between processes, that a rehearsal enforces, by name, and what
// happens when one is broken.
//
// report() may be called from any thread, also from the observer of a free: it takes only its own
// lock, which comes after every other, and touches neither a communicator nor the emulated device.
#pragma once

#include <cstdint>
#include <string>

namespace tracehook::rehearsal::nccl {

enum class Rule {
#define RULE(name, ...) k##name,
#include "rules.def"
#undef RULE
    kCount
};

// Whom a violation is about: the rank within the communicator (-1: unknown), the handle (null:
// none), and the key of the communicator in tracehook's log (0: unknown).
struct Subject {
    int rank;
    const void* communicator;
    std::uint64_t key;
};

// Says at once, on one line of stderr, that `rule` was broken, and keeps it for the end of the
// process.
void report(Rule rule, const Subject& subject, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// Has tracehook write where the program is (emu_nccl_set_witness), and waits for that. Before a
// call fails: the program is still near it. Any thread, holding nothing of this room.
void call_witness();

// Notes that a window could not be made on the communicator, and why. Rules that this leads to are
// named as its consequences, and are not counted as violations. The first failure is kept.
void note_failed_window(const Subject& subject, const std::string& why);

// Violations of this process so far, without consequences.
std::uint64_t violation_count();

// Prints the closing lines, one a broken rule. Nothing if none was broken.
void print_violations();

// From now on no other thread is inside the book during a fork, and the child has an empty one: the
// parent's violations are not its own.
void part_violations_at_forks();

} // namespace tracehook::rehearsal::nccl
