// What a thread launches beside the operations that the host computes: PyTorch's kernels that
// compute nothing in a rehearsal, and that nobody follows.
//
// Any thread, nothing held.
#pragma once

#include <string>

namespace tracehook::rehearsal::values {

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
