// The CUDA graphs that live and have collectives of one communicator in them, on certain memory.
//
// Any thread, without a lock. The graphs share it with its owner, and may outlive that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tracehook::registrar {

class LiveGraphs {
  public:
    // The capture of that number, never reused, took a collective: true if it is not the one that
    // took the last. Two captures at the same time may count more than once.
    bool is_new(std::uint64_t capture) noexcept {
        return last_.exchange(capture, std::memory_order_relaxed) != capture;
    }
    void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
    void remove() noexcept { count_.fetch_sub(1, std::memory_order_release); }
    std::size_t count() const noexcept { return count_.load(std::memory_order_acquire); }

  private:
    std::atomic<std::uint64_t> last_{0};
    std::atomic<std::size_t> count_{0};
};

} // namespace tracehook::registrar
