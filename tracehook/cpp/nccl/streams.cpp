#include "nccl/streams.h"

#include <array>
#include <atomic>
#include <utility>

namespace tracehook::nccl {

namespace {

constexpr std::uint32_t kFurther = 255;
std::array<std::atomic<std::uint64_t>, kFurther - 1> known{}; // 0: not taken yet

std::uint32_t find(std::uint64_t wanted) noexcept {
    for (std::uint32_t place = 0; place < known.size(); ++place) {
        std::uint64_t there = known[place].load(std::memory_order_acquire);
        if (there == 0 &&
            known[place].compare_exchange_strong(there, wanted, std::memory_order_acq_rel)) {
            there = wanted;
        }
        if (there == wanted) {
            return place + 1;
        }
    }
    return kFurther;
}

} // namespace

std::uint32_t number_of(Stream stream, int device) noexcept {
    thread_local std::pair<std::uint64_t, std::uint32_t> last{0, 0};
    // Addresses have at most 57 bits; each device has a default stream of its own.
    const std::uint64_t wanted =
        reinterpret_cast<std::uint64_t>(stream) ^ (static_cast<std::uint64_t>(device) + 2) << 57;
    if (last.first != wanted) {
        last = {wanted, find(wanted)};
    }
    return last.second;
}

} // namespace tracehook::nccl
