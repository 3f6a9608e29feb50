#include "nccl/marks.h"

#include "cuda/runtime.h"
#include "nccl/api.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

namespace tracehook::nccl {

namespace {

// The driver takes about a thousand launches before it stops the program: it cannot run further
// ahead.
constexpr std::size_t kKept = 1024;
constexpr unsigned kWithoutTiming = 2;
constexpr int kNotReady = 600;
constexpr int kStill = 2; // looks without a call, after which devices are asked
constexpr int kStood = 4; // looks in which a device did not go on, after which it is told

struct Mark {
    std::atomic<events::CallRecord*> record{nullptr}; // null: being made, or without an event
    std::atomic<std::uint32_t> order{0};              // of the call: its record may be another's
    void* event = nullptr;
    int device = -1; // of the event
};

std::array<Mark, kKept> marks;
std::atomic<std::uint64_t> made{0};
std::atomic<bool> somebody_looks{false};

// An event belongs to the device that was the current one when it was made: of a process that uses
// several, some calls have none.
bool has_event(const cuda::Runtime& cuda, Mark& mark) noexcept {
    if (mark.event == nullptr &&
        cuda::absorbed(cuda.cudaEventCreateWithFlags(&mark.event, kWithoutTiming)) == 0) {
        mark.device = current_device();
    }
    return mark.event != nullptr;
}

// On the event's device, whose context the program has made. A new thread stands on device 0, and a
// question asked there makes a context of 524 MiB (seen on H200s).
bool is_ready(const cuda::Runtime& cuda, const Mark& mark) noexcept {
    if (current_device() != mark.device && cuda::absorbed(cuda.cudaSetDevice(mark.device)) != 0) {
        return true;
    }
    const cuda::BesideCaptures beside;
    return cuda::absorbed(cuda.cudaEventQuery(mark.event)) != kNotReady;
}

// Null if it is another call's by now.
events::CallRecord* record_of(const Mark& mark) noexcept {
    events::CallRecord* const record = mark.record.load(std::memory_order_acquire);
    return record != nullptr && record->order == mark.order.load(std::memory_order_relaxed)
               ? record
               : nullptr;
}

} // namespace

bool marks_are_looked_at() noexcept {
    return somebody_looks.load(std::memory_order_relaxed);
}

void mark(events::CallRecord& record, Stream stream) noexcept {
    const cuda::Runtime& cuda = cuda::runtime();
    if (cuda.cudaEventRecord == nullptr || cuda.cudaEventCreateWithFlags == nullptr) {
        return;
    }
    Mark& mark = marks[made.fetch_add(1, std::memory_order_relaxed) % kKept];
    mark.record.store(nullptr, std::memory_order_relaxed);
    if (has_event(cuda, mark) && cuda::absorbed(cuda.cudaEventRecord(mark.event, stream)) == 0) {
        mark.order.store(record.order, std::memory_order_relaxed);
        mark.record.store(&record, std::memory_order_release);
    }
}

void look_at_marks() noexcept {
    somebody_looks.store(true, std::memory_order_relaxed);
    static std::uint64_t before = 0;
    static std::uint64_t stood_at = 0; // the call to which a device had not come
    static int looks = 0;              // in which neither the program nor the device went on
    static std::uint64_t over = 0;     // to the calls before it all devices have come
    const std::uint64_t now = made.load(std::memory_order_relaxed);
    const std::uint64_t oldest = now - std::min<std::uint64_t>(now, kKept);
    if (now != before) {
        looks = 0;
    }
    if (std::exchange(before, now) != now || ++looks < kStill || now == over) {
        return;
    }
    // Whoever made the marks has found the runtime. At the first look this thread would find it,
    // and a program that forks meanwhile would have a child that waits for that for ever.
    const cuda::Runtime& cuda = cuda::runtime();
    std::array<bool, kKept> ahead{};
    std::uint64_t first = now;
    bool is_asked = true; // about each call
    for (std::uint64_t number = now; number-- > oldest;) {
        const Mark& mark = marks[number % kKept];
        if (mark.record.load(std::memory_order_acquire) == nullptr) {
            is_asked = false;
        } else if (!is_ready(cuda, mark)) {
            ahead[number % kKept] = true;
            first = number;
        }
    }
    if (std::exchange(stood_at, first) != first) {
        looks = kStill;
    }
    if (first == now && is_asked) {
        over = now;
    }
    // Of calls before the oldest that is kept nothing is known.
    const std::uint32_t told = looks < kStill + kStood         ? 0
                               : first > oldest || oldest == 0 ? events::kAhead
                                                               : events::kFarAhead;
    for (std::uint64_t number = oldest; number < now; ++number) {
        if (events::CallRecord* const record = record_of(marks[number % kKept])) {
            record->place = (record->place & ~(events::kAhead | events::kFarAhead)) |
                            (ahead[number % kKept] ? told : 0);
        }
    }
}

} // namespace tracehook::nccl
