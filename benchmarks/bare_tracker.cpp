// The least that a tracker can be: what our hook is compared with. Built against torch by
// benchmarks/native.py.
#include <c10/cuda/CUDACachingAllocator.h>

extern "C" __attribute__((visibility("default"))) void attach_bare_tracker() {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(
        [](const c10::cuda::CUDACachingAllocator::TraceEntry&) {});
}
