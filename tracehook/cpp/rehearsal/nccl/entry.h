// One call of a client: counted, its communicator found and checked, the guard held until it
// returns.
//
// Every exported function makes one first and returns its result if it was refused. Rules C2, C5
// and L6 are enforced here and nowhere else; so are injected faults, inside the guard, so that a
// slow call is slow where it matters.
#pragma once

#include "communicator.h"
#include "names.h"

#include "rehearsal/cuda/device.h"

#include <chrono>
#include <memory>

namespace tracehook::rehearsal::nccl {

enum class Access {
    kUse,   // needs a ready communicator and takes the guard
    kBooks, // bookkeeping without the device, under the guard: also of one that is suspended, was
            // shrunk or has failed
    kEnd,   // finalize and destroy: also of one that is finalizing or was revoked
    kChild, // split and shrink: also of one that was revoked
    kQuery, // needs one that was ready, takes no guard
    kAny,   // abort, revoke, the asynchronous error: whatever is alive, no guard
};

class Entry {
  public:
    // A call without a communicator.
    explicit Entry(const char* call);
    Entry(const char* call, Comm handle, Access access);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    bool refused() const { return result_ != kSuccess; }
    Result result() const { return result_; }
    const char* call() const { return call_; }
    const emu_fault& fault() const { return fault_; }
    std::chrono::microseconds holding() const {
        return std::chrono::microseconds(fault_.holding_us);
    }
    const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  private:
    Result admit(Comm handle, Access access);
    Result check_state(Access access) const;
    Result suffer();

    const char* call_;
    emu_fault fault_;
    std::shared_ptr<Communicator> communicator_;
    bool inside_ = false;
    Result result_ = kSuccess;
};

} // namespace tracehook::rehearsal::nccl
