// What benchmarks/hot_path.py measures and compares with, built against torch by
// benchmarks/native.py.
#include <algorithm>
#include <c10/cuda/CUDACachingAllocator.h>
#include <chrono>
#include <limits>

#define EXPORTED extern "C" __attribute__((visibility("default")))

using clock_type = std::chrono::steady_clock;

// The least that a tracker can be.
EXPORTED void attach_bare_tracker() {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(
        [](const c10::cuda::CUDACachingAllocator::TraceEntry&) {});
}

// Nanoseconds of one alloc+free pair of 4 KiB, on the current stream: the best of many loops of
// `pairs` within `seconds`.
EXPORTED double best_pair_ns(long pairs, double seconds) {
    auto* const allocator = c10::cuda::CUDACachingAllocator::get();
    double best = std::numeric_limits<double>::infinity();
    const auto end = clock_type::now() + std::chrono::duration<double>(seconds);
    while (clock_type::now() < end) {
        const auto begin = clock_type::now();
        for (long pair = 0; pair < pairs; ++pair) {
            allocator->raw_delete(allocator->raw_alloc(4096));
        }
        const std::chrono::duration<double, std::nano> taken = clock_type::now() - begin;
        best = std::min(best, taken.count() / static_cast<double>(pairs));
    }
    return best;
}
