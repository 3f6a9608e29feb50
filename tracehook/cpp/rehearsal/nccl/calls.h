// The count of calls into this library, the text of the last error, and the summary at the end of
// the process.
//
// Any thread. The lock of the counts comes after every other.
#pragma once

#include "names.h"

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

// From now on no other thread is inside the counts during a fork, and the child counts from zero:
// the parent's calls are not its own.
void part_calls_at_forks();

} // namespace tracehook::rehearsal::nccl
