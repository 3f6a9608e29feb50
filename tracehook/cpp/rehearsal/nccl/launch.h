// From calls to streams: what one group (or one call outside a group) asks of each communicator is
// enqueued as one piece of work.
//
// Returns at once; the work runs on the thread of the stream, after all work launched before on
// that communicator. Takes the guard of each communicator while it launches on it (rule L6) and
// leaves the current device as it was.
#pragma once

#include "communicator.h"
#include "operation.h"

#include "rehearsal/cuda/device.h"

#include <memory>
#include <vector>

namespace tracehook::rehearsal::nccl {

struct Request {
    std::shared_ptr<Communicator> communicator;
    Operation operation;
    Stream stream;
};

// `call` names who launches: ncclGroupEnd, or the operation itself.
void launch(const char* call, std::vector<Request> requests);

// Makes `device` the calling thread's current one for the life of this object.
class DeviceScope {
  public:
    explicit DeviceScope(int device) : before_(emu_current_device()) {
        emu_set_current_device(device);
    }
    ~DeviceScope() { emu_set_current_device(before_); }
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

  private:
    int before_;
};

// Runs one collective on the thread of its stream: the ranks exchange what they want, read each
// other's buffers, and write their own. No lock is held. Returns early, having written nothing, if
// the communicator is stopped while it waits.
void run_collective(Communicator& communicator, const Operation& operation);

// Runs the sends and receives of one group on the thread of its stream, all of them making progress
// together. Messages from one rank to another are matched in the order of the calls. A send is done
// when it has been received: the emulated NCCL keeps no buffer, so a job that relies on one hangs
// here, as it does with large messages on hardware.
void run_transfers(Communicator& communicator, const std::vector<Operation>& operations);

} // namespace tracehook::rehearsal::nccl
