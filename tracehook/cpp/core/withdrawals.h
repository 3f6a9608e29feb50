// The frees that wait for a communicator, in the order in which they came. Each lies on the stack
// of the thread that waits for it, so queueing a free allocates nothing.
//
// Guarded by the gate's mutex. While the gate works on the communicator, only the thread that does
// takes one out; else, and after its death, each waiting thread may take out its own.
#pragma once

#include "core/segment.h"

namespace tracehook::core {

struct Withdrawal {
    Segment segment;
    Withdrawal* next = nullptr;
    bool done = false;
};

class Withdrawals {
  public:
    bool empty() const noexcept { return first_ == nullptr; }
    Withdrawal* first() const noexcept { return first_; }

    void add(Withdrawal& withdrawal) noexcept {
        Withdrawal** end = &first_;
        while (*end != nullptr) {
            end = &(*end)->next;
        }
        *end = &withdrawal;
    }

    void remove(const Withdrawal& withdrawal) noexcept {
        for (Withdrawal** link = &first_; *link != nullptr; link = &(*link)->next) {
            if (*link == &withdrawal) {
                *link = withdrawal.next;
                return;
            }
        }
    }

  private:
    Withdrawal* first_ = nullptr;
};

} // namespace tracehook::core
