// Which memory of our pools the program gave back and torch does not give out again yet, because
// other streams used it (record_stream): a send, a collective on a side stream.
//
// When that ends depends on the device. Whether such memory is given out again must not: ranks with
// equal programs get equal places. So a scope begins when none is left.
//
// free() and freed() are called in the allocator's callback, for addresses in the bank's span: the
// device's allocator lock is held. Most frees are followed by their freed() at once, and then
// nobody looks the address up. The other functions: any thread, without that lock.
#pragma once

#include "windows/bank.h"

#include <array>
#include <atomic>
#include <cstdint>

namespace tracehook::windows {

class PendingBlocks {
  public:
    explicit PendingBlocks(const Bank& bank) noexcept : bank_(bank) {}

    void free(int device, std::uintptr_t address) noexcept {
        if (PerDevice* const found = of(device)) {
            count(*found, found->last.load(std::memory_order_relaxed), 1);
            found->last.store(address, std::memory_order_relaxed);
        }
    }
    void freed(int device, std::uintptr_t address) noexcept {
        if (PerDevice* const found = of(device)) {
            if (found->last.load(std::memory_order_relaxed) == address) {
                found->last.store(0, std::memory_order_relaxed);
            } else {
                count(*found, address, -1);
            }
        }
    }

    // False: there is none. Two loads; true may be said too often.
    bool maybe(int device) const noexcept {
        const PerDevice* const found = of(device);
        return found != nullptr && (found->last.load(std::memory_order_relaxed) != 0 ||
                                    found->earlier.load(std::memory_order_relaxed) != 0);
    }
    // Whether there is one now.
    bool any(int device) const noexcept {
        const PerDevice* const found = of(device);
        return found != nullptr && (found->earlier.load(std::memory_order_relaxed) != 0 ||
                                    is_ours(found->last.load(std::memory_order_relaxed)));
    }

  private:
    static constexpr int kDevices = 128; // torch's own limit is 120

    struct PerDevice {
        std::atomic<std::uintptr_t> last{0};  // given back last, perhaps not the bank's
        std::atomic<std::int64_t> earlier{0}; // of the bank, given back before that
    };

    PerDevice* of(int device) noexcept {
        return device >= 0 && device < kDevices ? &devices_[static_cast<std::size_t>(device)]
                                                : nullptr;
    }
    const PerDevice* of(int device) const noexcept {
        return const_cast<PendingBlocks*>(this)->of(device);
    }
    bool is_ours(std::uintptr_t address) const noexcept {
        return address != 0 && bank_.find(address).has_value();
    }
    // Torch keeps a segment as long as one of its blocks is pending, so both counts of a block
    // find the same.
    void count(PerDevice& where, std::uintptr_t address, std::int64_t change) const noexcept {
        if (is_ours(address)) {
            where.earlier.fetch_add(change, std::memory_order_relaxed);
        }
    }

    const Bank& bank_;
    std::array<PerDevice, kDevices> devices_;
};

} // namespace tracehook::windows
