// The driver's functions about streams: work on memory, in the order of each, and captures.
//
// Any thread. In a forked child the functions fail as the runtime's do. The names with and without
// a suffix are the same functions here.
#include "copy.h"
#include "driver_context.h"
#include "host_memory.h"
#include "memory.h"
#include "unwritten.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <span>
#include <thread>
#include <vector>

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tracehook::rehearsal::cuda {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// One operation on a word of memory: a write, or a wait until `condition` (0: at least `value`,
// cyclically; 1: equal; 2: a common bit; 3: a bit that neither has) holds. A wait blocks its
// thread, and the memory must stay mapped meanwhile. A write releases what was done before it to
// who waits for it, be it another stream, another process or the CPU, and wakes who sleeps.
struct MemoryOperation {
    uintptr_t address;
    uint32_t value;
    bool waits;
    unsigned condition;
};

constexpr int kSpins = 1000;
constexpr auto kYielding = 50us;
constexpr auto kShortestSleep = 20us;
constexpr auto kLongestSleep = 500us;

constexpr unsigned kAtLeast = 0, kEqual = 1, kCommonBit = 2, kNeitherBit = 3;

std::atomic_ref<uint32_t> word_of(const MemoryOperation& operation) {
    return std::atomic_ref(*reinterpret_cast<uint32_t*>(operation.address));
}

bool holds(const MemoryOperation& operation, uint32_t seen) {
    switch (operation.condition) {
    case kAtLeast:
        return static_cast<int32_t>(seen - operation.value) >= 0;
    case kEqual:
        return seen == operation.value;
    case kCommonBit:
        return (seen & operation.value) != 0;
    default:
        return ~(seen | operation.value) != 0;
    }
}

// Not only this process: the word may be mapped by several.
long futex(uint32_t* word, int what, uint32_t value, const timespec* timeout) {
    return syscall(SYS_futex, word, what, value, timeout, nullptr, 0);
}

// Until a write of a stream wakes us. Others (copies, the CPU) do not, so it is never for long; the
// longer it has lasted, the less a little more matters.
void sleep_for_a_write(const MemoryOperation& operation, uint32_t seen, Clock::duration waited) {
    thread_local const int precise = prctl(PR_SET_TIMERSLACK, 1000UL);
    static_cast<void>(precise);
    const auto length = std::clamp<Clock::duration>(waited / 64, kShortestSleep, kLongestSleep);
    const timespec timeout{0, std::chrono::nanoseconds(length).count()};
    futex(reinterpret_cast<uint32_t*>(operation.address), FUTEX_WAIT, seen, &timeout);
}

void wait(const MemoryOperation& operation) {
    const std::atomic_ref<uint32_t> word = word_of(operation);
    const auto satisfied = [&] { return holds(operation, word.load(std::memory_order_acquire)); };
    for (int spin = 0; spin < kSpins; ++spin) {
        if (satisfied()) {
            return;
        }
    }
    const auto began = Clock::now();
    while (Clock::now() - began < kYielding) {
        if (satisfied()) {
            return;
        }
        std::this_thread::yield();
    }
    for (;;) {
        const uint32_t seen = word.load(std::memory_order_acquire);
        if (holds(operation, seen)) {
            return;
        }
        sleep_for_a_write(operation, seen, Clock::now() - began);
    }
}

void write(const MemoryOperation& operation) {
    word_of(operation).store(operation.value, std::memory_order_release);
    futex(reinterpret_cast<uint32_t*>(operation.address), FUTEX_WAKE, INT_MAX, nullptr);
}

// Aligned, and memory that a device can reach.
bool is_word(uintptr_t address) {
    const auto* const pointer = reinterpret_cast<const void*>(address);
    return address % sizeof(uint32_t) == 0 && (Memory::instance().find(pointer, sizeof(uint32_t)) ||
                                               HostMemory::instance().find(pointer, nullptr));
}

void perform(const MemoryOperation& operation) {
    Unwritten::instance().fill(reinterpret_cast<const void*>(operation.address), sizeof(uint32_t));
    operation.waits ? wait(operation) : write(operation);
}

// Gives operations to a stream as one piece of work, in its order. A wait blocks that stream only.
Status give(void* handle, std::vector<MemoryOperation> operations) {
    if (!std::ranges::all_of(operations, [](const auto& each) { return is_word(each.address); })) {
        return kInvalidValue;
    }
    const bool waits = std::ranges::any_of(operations, [](const auto& each) { return each.waits; });
    const auto work = [operations = std::move(operations)] {
        std::ranges::for_each(operations, perform);
    };
    // A wait must not be done by who gives it.
    return launch_on_stream(handle, [work, waits](const std::shared_ptr<Stream>& on) {
        waits ? on->enqueue(work) : on->submit(work);
    });
}

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

int add(std::vector<MemoryOperation>& operations, const BatchEntry& entry) {
    switch (entry.operation) {
    case kWait32:
        operations.push_back({entry.address, entry.value, true, entry.flags & kConditions});
        return (entry.flags & ~(kFlush | kConditions)) == 0 ? kSuccess : kInvalidValue;
    case kWrite32:
        operations.push_back({entry.address, entry.value, false, 0});
        return (entry.flags & ~kNoMemoryBarrier) == 0 ? kSuccess : kInvalidValue;
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

int give_all(void* stream, std::span<const BatchEntry> entries, unsigned flags = 0,
             const char* call = __builtin_FUNCTION()) noexcept {
    if (const int status = enter_driver(call); status != kSuccess) {
        return status;
    }
    return guarded([&]() -> int {
        if (entries.size() > kMostOperations || flags != 0) {
            return kInvalidValue;
        }
        std::vector<MemoryOperation> operations;
        for (const BatchEntry& entry : entries) {
            if (const int status = add(operations, entry); status != kSuccess) {
                return status;
            }
        }
        return give(stream, std::move(operations));
    });
}

} // namespace

EMU_EXPORT int cudaStreamIsCapturing(void* stream, int* status);

EMU_EXPORT int cuStreamIsCapturing(void* stream, int* status) {
    return cudaStreamIsCapturing(stream, status);
}

EMU_EXPORT int cuMemsetD32Async(uintptr_t address, unsigned value, size_t count, void* stream) {
    auto* const words = reinterpret_cast<uint32_t*>(address);
    return run_on_stream(stream, [=] {
        Unwritten::instance().forget(words, count * sizeof value);
        std::fill_n(words, count, value);
    });
}

EMU_EXPORT int cuStreamWriteValue32_v2(void* stream, uintptr_t address, uint32_t value,
                                       unsigned flags) {
    const BatchEntry entry{kWrite32, address, {value}, flags, 0, 0};
    return give_all(stream, {&entry, 1});
}

EMU_ALIAS(cuStreamWriteValue32, cuStreamWriteValue32_v2)

EMU_EXPORT int cuStreamWaitValue32_v2(void* stream, uintptr_t address, uint32_t value,
                                      unsigned flags) {
    const BatchEntry entry{kWait32, address, {value}, flags, 0, 0};
    return give_all(stream, {&entry, 1});
}

EMU_ALIAS(cuStreamWaitValue32, cuStreamWaitValue32_v2)

EMU_EXPORT int cuStreamBatchMemOp_v2(void* stream, unsigned count, const BatchEntry* entries,
                                     unsigned flags) {
    return give_all(stream, {entries, count}, flags);
}

EMU_ALIAS(cuStreamBatchMemOp, cuStreamBatchMemOp_v2)

} // namespace tracehook::rehearsal::cuda
