// The count of calls into this library, the text of the last error, and the summary at the end of
// the process.
//
// Any thread. The lock of the counts comes after every other.
#pragma once

#include "names.h"

#include <cstdint>
#include <string>

namespace tracehook::rehearsal::nccl {

// Counts a call by NCCL's name.
void count_call(const char* name);

// Counts something that is not a call, for the summary only: "uneven_operations".
void count_event(const char* name);

// Makes `text` the calling thread's last error and returns `result`.
Result failed(Result result, const std::string& text);

// The calling thread's last error; valid until its next failure.
const char* last_error();

// Appends this process's line to the directory of records, if there is one and anything was called.
void write_summary(std::size_t registrations_left, std::size_t communicators_left);

// Around a fork: no other thread is inside the counts meanwhile.
void hold_calls();
void release_calls();

// In a forked child, while they are held: the parent's calls are not the child's.
void forget_calls();

} // namespace tracehook::rehearsal::nccl
