#include "torch/held_uses.h"

#include "cuda/runtime.h"
#include "elf/slots.h"
#include "windows/scope_stack.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tracehook::torch {

namespace {

constexpr int kSuccess = 0;
constexpr int kNotReady = 600; // cudaErrorNotReady

struct Freed {
    int device = -1;
    std::uintptr_t address = 0;
};

thread_local Freed being_freed;

// Never destroyed: the allocator frees memory at exit, too.
struct HeldUses {
    std::atomic<const windows::Bank*> bank{nullptr};
    cuda::Function<void*, void*> record = nullptr; // before any slot leads here
    cuda::Function<void*> query = nullptr;
    std::atomic<std::size_t> count{0};     // of events; written with the mutex
    std::mutex mutex;                      // a leaf: events
    std::unordered_map<void*, int> events; // to their devices

    static HeldUses& instance() {
        static auto* const one = new HeldUses;
        return *one;
    }

    void hold(void* event, int device) noexcept {
        const std::lock_guard guard(mutex);
        try {
            events[event] = device;
        } catch (const std::bad_alloc&) {
            return; // torch gets the memory when the stream is done
        }
        count.store(events.size(), std::memory_order_relaxed);
    }
    void drop(void* event) noexcept {
        const std::lock_guard guard(mutex);
        events.erase(event);
        count.store(events.size(), std::memory_order_relaxed);
    }
    bool any() const noexcept { return count.load(std::memory_order_relaxed) != 0; }
    // -1: it is not held.
    int device_of(void* event) noexcept {
        const std::lock_guard guard(mutex);
        const auto found = events.find(event);
        return found != events.end() ? found->second : -1;
    }
};

int on_cudaEventRecord(void* event, void* stream) {
    HeldUses& held = HeldUses::instance();
    const Freed freed = std::exchange(being_freed, {});
    if (freed.address != 0 &&
        held.bank.load(std::memory_order_acquire)->find(freed.address).has_value()) {
        held.hold(event, freed.device);
    } else if (held.any()) {
        held.drop(event); // torch waited for it, and uses it again
    }
    return held.record(event, stream);
}

int on_cudaEventQuery(void* event) {
    HeldUses& held = HeldUses::instance();
    const int device = held.any() ? held.device_of(event) : -1;
    if (device < 0) {
        return held.query(event);
    }
    if (windows::ScopeStack::open_on(device)) {
        return kNotReady;
    }
    const int status = held.query(event);
    if (status == kSuccess) {
        held.drop(event);
    }
    return status;
}

// What the slots lead to now; else the runtime's.
template <typename Target>
void look(Target& target, Target ours, const elf::LoadedObject& object, const elf::Slot& slot,
          Target runtime) {
    void* const there = slot.target();
    if (reinterpret_cast<Target>(there) == ours) {
        return; // known since the first try, of which another slot failed
    }
    target = there == nullptr || object.contains(there) ? runtime // not used yet
                                                        : reinterpret_cast<Target>(there);
}

bool rewrite_slots(HeldUses& held) {
    const std::vector<elf::Replacement> calls = {
        {"cudaEventRecord", reinterpret_cast<void*>(&on_cudaEventRecord)},
        {"cudaEventQuery", reinterpret_cast<void*>(&on_cudaEventQuery)}};
    std::vector<elf::Slot> slots;
    for (const elf::LoadedObject& object :
         elf::loaded_objects(calls, [&](const elf::LoadedObject& one) {
             return one.name().starts_with("libc10_cuda") ? calls.size() : std::size_t{0};
         })) {
        for (const elf::Slot& slot : object.slots) {
            if (slot.replacement == 0) {
                look(held.record, &on_cudaEventRecord, object, slot,
                     cuda::runtime().cudaEventRecord);
            } else {
                look(held.query, &on_cudaEventQuery, object, slot, cuda::runtime().cudaEventQuery);
            }
            slots.push_back(slot);
        }
    }
    if (held.record == nullptr || held.query == nullptr) {
        return false;
    }
    elf::rewrite(slots, calls);
    return true;
}

} // namespace

bool hold_uses(const windows::Bank& bank) noexcept {
    HeldUses& held = HeldUses::instance();
    static std::mutex mutex; // one at a time
    static bool stands = false;
    const std::lock_guard guard(mutex);
    held.bank.store(&bank, std::memory_order_release);
    try {
        stands = stands || rewrite_slots(held);
    } catch (const std::exception&) {
        return false;
    }
    return stands;
}

void expect_use(int device, std::uintptr_t address) noexcept {
    being_freed = {device, address};
}

void expect_no_use() noexcept {
    being_freed = {};
}

} // namespace tracehook::torch
