// The driver's functions about streams: work on memory, in the order of each, and captures.
//
// Any thread. In a forked child the functions fail as the runtime's do. The names with and without
// a suffix are the same functions here.
#include "cuda_abi.h"
#include "driver_support.h"

#include <span>
#include <vector>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr unsigned kFlush = 1U << 30;    // of a wait: nothing to do here
constexpr unsigned kNoMemoryBarrier = 1; // of a write: an order may be weaker, and is not
constexpr unsigned kConditions = 3;
constexpr unsigned kMostOperations = 256;

constexpr int kWait32 = 1, kWrite32 = 2, kFlushRemoteWrites = 3, kWait64 = 4, kWrite64 = 5,
              kBarrier = 6;

// One CUstreamBatchMemOpParams; a flush and a barrier have no address.
struct BatchEntry {
    int operation;
    uint64_t address;
    union {
        uint32_t value;
        uint64_t value64;
    };
    unsigned flags;
    uint64_t alias;
    uint64_t unused;
};
static_assert(sizeof(BatchEntry) == 48);

int add_wait(std::vector<emu_memory_operation>& operations, uintptr_t address, uint32_t value,
             unsigned flags) {
    operations.push_back({address, value, 1, flags & kConditions});
    return (flags & ~(kFlush | kConditions)) == 0 ? kSuccess : kInvalidValue;
}

int add_write(std::vector<emu_memory_operation>& operations, uintptr_t address, uint32_t value,
              unsigned flags) {
    operations.push_back({address, value, 0, 0});
    return (flags & ~kNoMemoryBarrier) == 0 ? kSuccess : kInvalidValue;
}

int add(std::vector<emu_memory_operation>& operations, const BatchEntry& entry) {
    switch (entry.operation) {
    case kWait32:
        return add_wait(operations, entry.address, entry.value, entry.flags);
    case kWrite32:
        return add_write(operations, entry.address, entry.value, entry.flags);
    case kFlushRemoteWrites:
    case kBarrier:
        return kSuccess; // what the order of a stream here implies
    case kWait64:
    case kWrite64:
        return kNotSupported;
    default:
        return kInvalidValue;
    }
}

// What `collect` adds goes to the stream if it succeeds.
template <typename Collect>
int give(void* stream, Collect&& collect, const char* call = __builtin_FUNCTION()) noexcept {
    if (const int status = emu_driver_enter(call); status != kSuccess) {
        return status;
    }
    try {
        std::vector<emu_memory_operation> operations;
        const int status = collect(operations);
        return status == kSuccess
                   ? emu_stream_memory_operations(stream, operations.data(), operations.size())
                   : status;
    } catch (...) {
        return kMemoryAllocation;
    }
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cudaStreamIsCapturing(void* stream, int* status);

EMU_EXPORT int cuStreamIsCapturing(void* stream, int* status) {
    return cudaStreamIsCapturing(stream, status);
}

EMU_EXPORT int cuMemsetD32Async(uintptr_t address, unsigned value, size_t count, void* stream) {
    return emu_stream_set_words(stream, reinterpret_cast<void*>(address), value, count);
}

EMU_EXPORT int cuStreamWriteValue32_v2(void* stream, uintptr_t address, uint32_t value,
                                       unsigned flags) {
    return give(stream, [&](auto& all) { return add_write(all, address, value, flags); });
}

EMU_EXPORT int cuStreamWriteValue32(void* stream, uintptr_t address, uint32_t value,
                                    unsigned flags) {
    return cuStreamWriteValue32_v2(stream, address, value, flags);
}

EMU_EXPORT int cuStreamWaitValue32_v2(void* stream, uintptr_t address, uint32_t value,
                                      unsigned flags) {
    return give(stream, [&](auto& all) { return add_wait(all, address, value, flags); });
}

EMU_EXPORT int cuStreamWaitValue32(void* stream, uintptr_t address, uint32_t value,
                                   unsigned flags) {
    return cuStreamWaitValue32_v2(stream, address, value, flags);
}

EMU_EXPORT int cuStreamBatchMemOp_v2(void* stream, unsigned count, const BatchEntry* entries,
                                     unsigned flags) {
    return give(stream, [&](auto& all) -> int {
        if (count > kMostOperations || flags != 0) {
            return kInvalidValue;
        }
        for (const BatchEntry& entry : std::span(entries, count)) {
            if (const int status = add(all, entry); status != kSuccess) {
                return status;
            }
        }
        return kSuccess;
    });
}

EMU_EXPORT int cuStreamBatchMemOp(void* stream, unsigned count, const BatchEntry* entries,
                                  unsigned flags) {
    return cuStreamBatchMemOp_v2(stream, count, entries, flags);
}
