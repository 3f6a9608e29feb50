#include "host_limits.h"

#include "cuda_abi.h"
#include "device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr int64_t kDefaultElements = int64_t{1} << 24;
constexpr double kLeastFree = 0.05; // of the machine's memory
constexpr std::chrono::milliseconds kLookAgain{20};

int64_t read_limit() {
    const char* text = std::getenv("TRACEHOOK_EMU_VALUES");
    if (text == nullptr || *text == '\0') {
        return kDefaultElements;
    }
    char* end = nullptr;
    const double limit = std::strtod(text, &end);
    return *end == '\0' && limit >= 0 ? static_cast<int64_t>(std::min(limit, 1e18)) : 0;
}

bool look_at_memory() {
    std::ifstream file("/proc/meminfo");
    std::string word;
    double total = 0;
    double available = 0;
    while (file >> word) {
        if (word == "MemTotal:") {
            file >> total;
        } else if (word == "MemAvailable:") {
            file >> available;
            break;
        }
    }
    return total > 0 && available < kLeastFree * total;
}

} // namespace

int64_t most_values() {
    static const int64_t limit = read_limit();
    return limit;
}

bool memory_is_short() {
    using Clock = std::chrono::steady_clock;
    static std::atomic<bool> is_short{false};
    static std::atomic<Clock::rep> next{0};
    const Clock::rep now = Clock::now().time_since_epoch().count();
    Clock::rep due = next.load(std::memory_order_relaxed);
    const Clock::rep later = now + std::chrono::duration_cast<Clock::duration>(kLookAgain).count();
    if (now >= due && next.compare_exchange_strong(due, later)) {
        is_short.store(look_at_memory(), std::memory_order_relaxed);
    }
    return is_short.load(std::memory_order_relaxed);
}

EMU_EXPORT int64_t emu_most_values(void) {
    return most_values();
}

EMU_EXPORT int emu_memory_is_short(void) {
    return memory_is_short() ? 1 : 0;
}

} // namespace tracehook::rehearsal::cuda
