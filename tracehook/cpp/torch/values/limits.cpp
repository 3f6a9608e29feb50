#include "torch/values/limits.h"

#include "torch/values/tensors.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>

namespace tracehook::values {
namespace {

constexpr int64_t kDefaultElements = int64_t{1} << 24;
constexpr int64_t kSmall = int64_t{1} << 16;
constexpr double kProducts = 16;
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

int64_t most_elements() {
    static const int64_t limit = read_limit();
    return limit;
}

bool is_within_limits(const std::vector<c10::IValue>& arguments,
                      const std::vector<c10::IValue>& results, bool product) {
    std::array<int64_t, 3> largest{};
    const auto look = [&](const at::Tensor& tensor) {
        if (!tensor.defined()) {
            return;
        }
        const int64_t count = elements_of(tensor);
        if (count > largest[2]) {
            largest[2] = count;
            std::sort(largest.begin(), largest.end(), std::greater<>());
        }
    };
    for (const std::vector<c10::IValue>* values : {&arguments, &results}) {
        for (const c10::IValue& value : *values) {
            for_each_tensor(value, look);
        }
    }
    const int64_t limit = most_elements();
    if (largest[0] > limit || (largest[0] > kSmall && memory_is_short())) {
        return false;
    }
    if (!product || largest[2] == 0) {
        return true;
    }
    // A matrix product has as many multiplications as the root of what its three matrices hold.
    const double multiplications = std::sqrt(static_cast<double>(largest[0])) *
                                   std::sqrt(static_cast<double>(largest[1])) *
                                   std::sqrt(static_cast<double>(largest[2]));
    return multiplications <= kProducts * static_cast<double>(limit);
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

} // namespace tracehook::values
