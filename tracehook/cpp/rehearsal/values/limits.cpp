#include "rehearsal/values/limits.h"

#include "rehearsal/cuda/device.h"
#include "rehearsal/cuda/host_limits.h"
#include "rehearsal/values/tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

namespace tracehook::rehearsal::values {
namespace {

constexpr double kProducts = 16;

} // namespace

int64_t most_elements() {
    return emu_most_values();
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
            std::ranges::sort(largest, std::greater<>());
        }
    };
    for (const std::vector<c10::IValue>* values : {&arguments, &results}) {
        for (const c10::IValue& value : *values) {
            for_each_tensor(value, look);
        }
    }
    const int64_t limit = most_elements();
    if (largest[0] > limit || (largest[0] > cuda::kSmallTensor && emu_memory_is_short() != 0)) {
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

} // namespace tracehook::rehearsal::values
