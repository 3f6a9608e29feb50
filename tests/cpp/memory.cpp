// What a registration costs in memory, and that it stays so: the registrar alone, with
// communicators that store nothing.
#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

using namespace tracehook::events;
using namespace tracehook::registrar;
using namespace tracehook::windows;

namespace {

constexpr std::size_t kSegments = 100'000;
constexpr std::size_t kCommunicators = 16;
constexpr double kLimit = 200;              // bytes per registration
constexpr std::size_t kGrowth = 512 * 1024; // bytes, over kCycles
constexpr std::size_t kCycles = 40'000;
constexpr std::size_t kSize = 2 << 20;

class Forgetful final : public RegistrationCalls {
  public:
    Outcome register_range(std::uintptr_t address, std::size_t) noexcept override {
        return {0, reinterpret_cast<void*>(address)};
    }
    int deregister(void*) noexcept override { return 0; }
    Outcome register_window(std::uintptr_t, std::size_t) noexcept override { return {}; }
    int deregister_window(void*) noexcept override { return 0; }
    void synchronize() noexcept override {}
    int remember_device() noexcept override { return 0; }
    void restore_device(int) noexcept override {}
    bool ready() noexcept override { return true; }
};

struct World {
    Ring ring{"", 64}; // full at once: what it costs is fixed, and not what is measured
    Bank bank{ring};
    Registrar registrar{ring, in(bank)};

    void create(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            Identity identity;
            identity.pointer = reinterpret_cast<void*>(i + 1);
            identity.device = 0;
            registrar.add(identity, [](const Identity&) { return std::make_unique<Forgetful>(); });
        }
    }
    void allocate(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            registrar.segment_allocated(0, (i + 1) * kSize, kSize);
        }
    }
    std::size_t registrations() const {
        std::size_t held = 0;
        for (const auto& communicator : registrar.communicators()) {
            held += communicator->held();
        }
        return held;
    }
};

std::size_t resident() {
    std::size_t pages = 0;
    if (FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%*u %zu", &pages) != 1) {
            pages = 0;
        }
        std::fclose(file);
    }
    return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

bool report(const char* what, double value, double limit, const char* unit) {
    const bool good = value <= limit;
    std::printf("memory: %s: %s: %.1f %s (limit %.0f)\n", good ? "ok" : "FAILED", what, value, unit,
                limit);
    return good;
}

bool communicators_last() {
    World world;
    world.allocate(kSegments);
    const std::size_t before = resident();
    world.create(kCommunicators);
    const double bytes = static_cast<double>(resident() - before);
    return world.registrations() == kSegments * kCommunicators &&
           report("communicators after segments", bytes / (kSegments * kCommunicators), kLimit,
                  "bytes per registration");
}

bool communicators_first() {
    World world;
    world.create(kCommunicators);
    const std::size_t before = resident();
    world.allocate(kSegments);
    const double bytes = static_cast<double>(resident() - before);
    return world.registrations() == kSegments * kCommunicators &&
           report("segments after communicators, with the ledger",
                  bytes / (kSegments * kCommunicators), kLimit, "bytes per registration");
}

bool cycles() {
    World world;
    world.create(kCommunicators);
    world.allocate(1000);
    const auto cycle = [&](std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            const std::uintptr_t address = (2000 + i % 50) * kSize;
            world.registrar.segment_allocated(0, address, kSize);
            world.registrar.segment_freed(0, address, kSize);
        }
    };
    cycle(2000);
    const std::size_t before = resident();
    cycle(kCycles);
    const std::size_t after = resident();
    return report("growth over 40000 segments that came and went",
                  after > before ? static_cast<double>(after - before) : 0, kGrowth, "bytes");
}

// In a process of its own, so that one measurement does not inherit the freed memory of another.
bool apart(const std::function<bool()>& measure) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const bool good = measure();
        std::fflush(stdout);
        _exit(good ? 0 : 1);
    }
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

} // namespace

int main() {
    bool good = true;
    for (const auto& measure : {communicators_last, communicators_first, cycles}) {
        good = apart(measure) && good;
    }
    return good ? 0 : 1;
}
