// What a rehearsal did not compute: said once for each operation and reason, by the command at its
// end, from the files in the folder of the rehearsal. Also PyTorch's kernels that a thread launches
// beside the operations that the host computes: these compute nothing, and nobody follows them.
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

// From now on launches are seen. Once in a process.
void follow_launches();

// Sees the launches of its thread while it lives; of several, the youngest does. A launch that none
// of them sees is noted by its name.
class Launches {
  public:
    Launches();
    ~Launches();
    Launches(const Launches&) = delete;
    Launches& operator=(const Launches&) = delete;

    bool any() const { return any_; }

  private:
    static void seen(const char* name);
    friend void follow_launches();

    Launches* const before_;
    bool any_ = false;
};

} // namespace tracehook::rehearsal::values
