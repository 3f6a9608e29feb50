// CUDA's user objects: counted references to something of the program, which graphs may hold, and a
// function that is called when the last is gone.
//
// Any thread. The function is called by whoever gives back the last reference, without a lock.
#pragma once

#include "handle_table.h"

#include <atomic>

namespace tracehook::rehearsal::cuda {

class UserObject {
  public:
    using Destroy = void (*)(void* data);

    UserObject(void* data, Destroy destroy, unsigned references)
        : data_(data), destroy_(destroy), references_(references) {}

    void retain(unsigned count) { references_ += count; }
    // False if there are not so many. The object leaves the table with the last, and then its data
    // goes.
    bool release(unsigned count);

  private:
    void* const data_;
    const Destroy destroy_;
    std::atomic<unsigned> references_;
};

// The live ones of the process by handle; a graph keeps those that it holds.
HandleTable<UserObject>& user_objects();

} // namespace tracehook::rehearsal::cuda
