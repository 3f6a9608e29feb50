// One T for each thread, which code may ask for at any time: also when the thread's own objects
// have gone. A destructor of a static object runs so late, and so may that of another thread-local
// object; both may call NCCL. What is made after the end stays until the process ends.
#pragma once

#include <utility>

namespace tracehook::events {

template <typename T> class OfThread {
  public:
    static T& mine() { return own_ != nullptr ? *own_ : made(); }

  private:
    struct End {
        ~End() { delete std::exchange(own_, nullptr); }
    };
    [[gnu::noinline]] static T& made() {
        static thread_local const End end; // of the first T alone
        static_cast<void>(&end);
        own_ = new T;
        return *own_;
    }
    static inline constinit thread_local T* own_ = nullptr;
};

} // namespace tracehook::events
