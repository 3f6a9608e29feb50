// The streams of the process: handles, the legacy default stream of each device, and the order
// between that one and the blocking streams of its device.
//
// Any thread, except in a forked child. Only the two functions named synchronize wait.
#pragma once

#include "handle_table.h"
#include "identity.h"
#include "leaked.h"
#include "stream.h"

#include <array>
#include <memory>
#include <mutex>
#include <vector>

namespace tracehook::rehearsal::cuda {

class StreamTable {
  public:
    StreamTable();
    static StreamTable& instance() { return leaked<StreamTable>(); }

    void* create(int device, unsigned flags, int priority);
    bool destroy(void* handle);

    // The stream of a handle; for the null handle and the special ones, the legacy default stream
    // of the current device. Null for a handle that is not alive.
    std::shared_ptr<Stream> find(void* handle) const;

    // Whether it is the legacy default stream of its device.
    bool is_legacy(const Stream& stream) const;

    // To be called before work is given to `stream`. The legacy stream waits for what blocking
    // streams of its device were given before, and they wait for what it was given before;
    // non-blocking streams do neither.
    void order(const std::shared_ptr<Stream>& stream) const;

    // Work on `stream` from now on runs after `other` has done everything up to `sequence`.
    static void make_wait(Stream& stream, const std::shared_ptr<Stream>& other, uint64_t sequence);

    // Whether everything that `stream` was given so far is done; for the legacy stream, also what
    // it would wait for.
    bool idle(const std::shared_ptr<Stream>& stream) const;

    // Waits until that is so, for one stream or for all streams of `device`.
    void synchronize(const std::shared_ptr<Stream>& stream) const;
    void synchronize_device(int device) const;

  private:
    std::vector<std::shared_ptr<Stream>> streams_of(int device, bool blocking_only) const;

    HandleTable<Stream> handles_;
    std::array<std::shared_ptr<Stream>, kMaxDevices> legacy_;

    // Protects created_, which also knows destroyed streams with pending work. A stream's mutex is
    // never taken while it is held.
    mutable std::mutex mutex_;
    std::array<std::vector<std::weak_ptr<Stream>>, kMaxDevices> created_;
    std::array<std::atomic<int>, kMaxDevices> blocking_created_{};
};

} // namespace tracehook::rehearsal::cuda
