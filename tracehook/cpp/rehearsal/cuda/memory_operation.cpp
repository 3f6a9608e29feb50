// Work on one word of memory that streams do in their order: writes, and waits for somebody else's
// write, be it another stream, another process or the CPU.
//
// Any thread; a wait blocks it, and the memory must stay mapped meanwhile. A write releases what
// was done before it to who waits for it, and wakes who sleeps.
#include "capture.h"
#include "copy.h"
#include "cuda_abi.h"
#include "driver_support.h"
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

using MemoryOperation = emu_memory_operation;

void perform(const MemoryOperation& operation);

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

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

Status give(void* handle, std::vector<MemoryOperation> operations) {
    const StreamTable& table = StreamTable::instance();
    const std::shared_ptr<Stream> stream = table.find(handle);
    if (stream == nullptr) {
        return kInvalidResourceHandle;
    }
    const bool waits = std::ranges::any_of(operations, [](const auto& each) { return each.waits; });
    const auto work = [operations = std::move(operations)] {
        std::ranges::for_each(operations, perform);
    };
    // A wait must not be done by who gives it.
    const auto launch = [work, waits](const std::shared_ptr<Stream>& on) {
        waits ? on->enqueue(work) : on->submit(work);
    };
    if (const auto answer = Captures::instance().record(stream, launch)) {
        return *answer;
    }
    table.order(stream);
    launch(stream);
    return kSuccess;
}

void perform(const MemoryOperation& operation) {
    Unwritten::instance().fill(reinterpret_cast<const void*>(operation.address), sizeof(uint32_t));
    operation.waits ? wait(operation) : write(operation);
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int emu_stream_memory_operations(void* stream, const MemoryOperation* operations,
                                            size_t count) {
    try {
        const std::span all(operations, count);
        const bool valid = std::ranges::all_of(all, [](const MemoryOperation& each) {
            return is_word(each.address) && (each.waits == 0 || each.condition <= kNeitherBit);
        });
        return valid ? give(stream, {all.begin(), all.end()}) : kInvalidValue;
    } catch (...) {
        return kMemoryAllocation;
    }
}
