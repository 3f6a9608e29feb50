// The native part of the two peers: segment functions for torch's pluggable allocator, and SGLang's
// registration of what a communicator has not seen yet. Built by benchmarks/native.py.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <unordered_map>
#include <vector>

extern "C" {
int ncclMemAlloc(void** memory, std::size_t size);
int ncclMemFree(void* memory);
int ncclCommWindowRegister(void* comm, void* buffer, std::size_t size, void** window, int flags);
}

namespace {

constexpr int kCollSymmetric = 1;

struct Segment {
    void* memory;
    std::size_t size;
};

std::mutex mutex; // segments, watermarks; held while windows are registered, as there
std::vector<Segment> segments;
std::unordered_map<std::uintptr_t, std::size_t> watermarks; // by communicator: the first unseen one

void* allocate(std::size_t size) {
    void* memory = nullptr;
    return ncclMemAlloc(&memory, size) == 0 ? memory : nullptr;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// --- SGLang: one list in the order of allocation ---

EXPORT void* sglang_allocate(std::ptrdiff_t size, int, void*) {
    void* const memory = allocate(static_cast<std::size_t>(size));
    if (memory != nullptr) {
        const std::lock_guard guard(mutex);
        segments.push_back({memory, static_cast<std::size_t>(size)});
    }
    return memory;
}

// One free forgets everything.
EXPORT void sglang_free(void* memory, std::ptrdiff_t, int, void*) {
    ncclMemFree(memory);
    const std::lock_guard guard(mutex);
    segments.clear();
    watermarks.clear();
}

// Collective if there is something new. The windows are not kept.
EXPORT int sglang_register(void* comm) {
    const std::lock_guard guard(mutex);
    std::size_t& next = watermarks[reinterpret_cast<std::uintptr_t>(comm)];
    for (std::size_t position = next; position < segments.size(); ++position) {
        const Segment& segment = segments[position];
        void* window = nullptr;
        const int result =
            ncclCommWindowRegister(comm, segment.memory, segment.size, &window, kCollSymmetric);
        if (result != 0) {
            std::fprintf(stderr, "registering a window failed: NCCL error %d\n", result);
            return result;
        }
    }
    next = segments.size();
    return 0;
}

// For the benchmarks only.
EXPORT std::size_t sglang_registered(void* comm) {
    const std::lock_guard guard(mutex);
    return watermarks[reinterpret_cast<std::uintptr_t>(comm)];
}

EXPORT std::size_t sglang_segments(std::size_t* bytes) {
    const std::lock_guard guard(mutex);
    *bytes = 0;
    for (const Segment& segment : segments) {
        *bytes += segment.size;
    }
    return segments.size();
}

// --- vLLM: nothing is kept here ---

EXPORT void* vllm_allocate(std::ptrdiff_t size, int, void*) {
    return allocate(static_cast<std::size_t>(size));
}

EXPORT void vllm_free(void* memory, std::ptrdiff_t, int, void*) {
    ncclMemFree(memory);
}

// A window, registered from Python: one call for each segment.
EXPORT int vllm_register(void* comm, void* memory, std::size_t size, void** window) {
    return ncclCommWindowRegister(comm, memory, size, window, kCollSymmetric);
}
