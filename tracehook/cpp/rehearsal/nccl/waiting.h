// Who waits for whom, for `tracehook rehearse`: a file for each wait that takes longer than a
// second, in the directory of the records, as long as it lasts.
//
// A WaitScope lives on the thread that waits, around the wait; the rendezvous calls tick() there.
// Holding nothing. Without a directory of records nothing is written.
#pragma once

#include "communicator.h"

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tracehook::rehearsal::nccl {

class WaitScope {
  public:
    // `what` names the call; `missing` returns the ranks in the communicator that have not come.
    WaitScope(const Communicator& communicator, std::function<std::string()> what,
              std::function<std::vector<int>()> missing);
    ~WaitScope(); // the wait is over
    WaitScope(const WaitScope&) = delete;
    WaitScope& operator=(const WaitScope&) = delete;

    // The innermost of this thread, or null.
    static WaitScope* mine();
    // Called while this thread waits, at least every few milliseconds.
    void tick();

  private:
    void write();

    const Communicator& communicator_;
    std::function<std::string()> what_;
    std::function<std::vector<int>()> missing_;
    WaitScope* outer_;
    bool begun_ = false;
    std::chrono::steady_clock::time_point began_, written_;
    std::string path_; // empty: nothing was written
};

} // namespace tracehook::rehearsal::nccl
