#include "runtime_call.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tracehook::rehearsal::cuda {
namespace {

std::atomic<bool> asserted{false};

constinit std::atomic<uint64_t> all_calls{0};
constinit std::atomic<uint64_t> malloc_calls{0};
constinit std::atomic<uint64_t> free_calls{0};
constinit thread_local Status last = kSuccess;

} // namespace

void count_call(const char* call) noexcept {
    all_calls.fetch_add(1, std::memory_order_relaxed);
    if (std::strcmp(call, "cudaMalloc") == 0) {
        malloc_calls.fetch_add(1, std::memory_order_relaxed);
    } else if (std::strcmp(call, "cudaFree") == 0) {
        free_calls.fetch_add(1, std::memory_order_relaxed);
    }
}

bool has_asserted() noexcept {
    return asserted.load(std::memory_order_relaxed);
}

Status remember(Status status) noexcept {
    if (status != kSuccess) {
        last = status;
    }
    return status;
}

Status last_error() noexcept {
    return last;
}

Status take_last_error() noexcept {
    return std::exchange(last, kSuccess);
}

// Calls made so far by this process: of "cudaMalloc", of "cudaFree", or of "any" runtime function;
// 0 for other names.
EMU_EXPORT uint64_t emu_call_count(const char* name) {
    if (std::strcmp(name, "cudaMalloc") == 0) {
        return malloc_calls.load(std::memory_order_relaxed);
    }
    if (std::strcmp(name, "cudaFree") == 0) {
        return free_calls.load(std::memory_order_relaxed);
    }
    return std::strcmp(name, "any") == 0 ? all_calls.load(std::memory_order_relaxed) : 0;
}

EMU_EXPORT void emu_device_assert() {
    asserted.store(true, std::memory_order_relaxed);
}

} // namespace tracehook::rehearsal::cuda
