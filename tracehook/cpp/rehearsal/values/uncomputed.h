// What a rehearsal did not compute: said once for each operation and reason, by the command at its
// end, from the files in the folder of the rehearsal.
//
// Any thread, nothing held.
#pragma once

#include <string>

namespace tracehook::rehearsal::values {

// Notes that `operation` was not computed, and why: "no-kernel", "large", "values" (it was given
// values that the host's kernel refuses), "sizes" (the host's results have others), or "kernel":
// then it is the name of a kernel that PyTorch launched beside its operations.
void note_uncomputed(const std::string& operation, const char* reason);

// Says at once, on stderr, that the host's kernel of an operation refused its values: a device
// would most often stop there too.
void say_refused(const std::string& operation, const std::string& problem);

} // namespace tracehook::rehearsal::values
