#include "devices.h"

#include "device.h"
#include "identity.h"

#include <array>
#include <atomic>
#include <cstdlib>

#include <pthread.h>

namespace tracehook::rehearsal::cuda {
namespace {

enum class Process { kFresh, kInUse, kForked };

constinit std::atomic<Process> process{Process::kFresh};
constinit std::array<std::atomic<bool>, kMaxDevices> active{};
constinit thread_local int current = 0;

struct VisibleDevices {
    int count = 0;
    std::array<int, kMaxDevices> physical{};

    VisibleDevices() {
        const int existing = physical_device_count();
        const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
        if (list == nullptr) {
            for (; count < existing; ++count) {
                physical[count] = count;
            }
            return;
        }
        // As the driver does: the list ends at the first entry that names no device.
        for (const char* at = list; count < kMaxDevices;) {
            char* end = nullptr;
            const long index = std::strtol(at, &end, 10);
            if (end == at || index < 0 || index >= existing) {
                return;
            }
            physical[count++] = static_cast<int>(index);
            if (*end != ',') {
                return;
            }
            at = end + 1;
        }
    }
};

const VisibleDevices& visible_devices() {
    static const VisibleDevices devices;
    return devices;
}

void on_fork_in_child() {
    if (process.load(std::memory_order_relaxed) == Process::kInUse) {
        process.store(Process::kForked, std::memory_order_relaxed);
    }
}

__attribute__((constructor)) void watch_for_forks() {
    pthread_atfork(nullptr, nullptr, on_fork_in_child);
}

} // namespace

Status enter_runtime() {
    Process seen = process.load(std::memory_order_relaxed);
    if (seen == Process::kFresh) {
        process.compare_exchange_strong(seen, Process::kInUse, std::memory_order_relaxed);
    }
    if (seen == Process::kForked) {
        return kInitializationError;
    }
    return device_count() == 0 ? kNoDevice : kSuccess;
}

bool forked_child() {
    return process.load(std::memory_order_relaxed) == Process::kForked;
}

int device_count() {
    return visible_devices().count;
}

bool in_range(int device) {
    return device >= 0 && device < device_count();
}

int physical_index(int device) {
    return visible_devices().physical[device];
}

int current_device() {
    return current;
}

bool set_current_device(int device) {
    if (!in_range(device)) {
        return false;
    }
    current = device;
    return true;
}

bool device_is_active(int device) {
    return in_range(device) && active[device].load(std::memory_order_relaxed);
}

void activate_device(int device) {
    if (!active[device].load(std::memory_order_relaxed)) {
        active[device].store(true, std::memory_order_relaxed);
    }
}

EMU_EXPORT int emu_current_device(void) {
    return current_device();
}

EMU_EXPORT void emu_set_current_device(int device) {
    set_current_device(device);
}

} // namespace tracehook::rehearsal::cuda
