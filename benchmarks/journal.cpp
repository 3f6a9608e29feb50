// What an event costs the thread it happens on, on the very code of tracehook/cpp: a ring, and a
// registrar with communicators that do nothing. Built and drained by journal.py. Every time_*()
// returns nanoseconds for the whole loop.
#include "events/ring.h"
#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <chrono>
#include <string>

using namespace tracehook;

namespace {

constexpr std::size_t kSize = std::size_t{2} << 20;
constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 40;

class Silent final : public registrar::RegistrationCalls {
  public:
    registrar::Outcome register_range(std::uintptr_t, std::size_t) noexcept override {
        return {0, this};
    }
    int deregister(void*) noexcept override { return 0; }
    registrar::Outcome register_window(std::uintptr_t, std::size_t) noexcept override { return {}; }
    int deregister_window(void*) noexcept override { return 0; }
    void synchronize() noexcept override {}
    int remember_device() noexcept override { return 0; }
    void restore_device(int) noexcept override {}
    bool ready() noexcept override { return true; }
};

struct World {
    explicit World(const std::string& path) : ring(path, 65536) {}
    events::Ring ring;
    windows::Bank bank{ring};
    registrar::Registrar registrar{ring, windows::in(bank)};
};

template <typename Body> double nanoseconds(std::size_t rounds, Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < rounds; ++i) {
        body(i);
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin)
        .count();
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Never destroyed. An empty path: a ring in memory. Null if the file could not be made.
EXPORT World* make_world(const char* path, int communicators) {
    auto* const world = new World(path);
    for (int i = 1; i <= communicators; ++i) {
        registrar::Identity identity;
        identity.pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(i));
        identity.device = 0;
        identity.rank = 0;
        identity.size = 8;
        world->registrar.add(identity,
                             [](const registrar::Identity&) { return std::make_unique<Silent>(); });
    }
    return world->ring.error().empty() ? world : nullptr;
}

EXPORT double time_push(World* world, std::size_t rounds) {
    const events::Event event =
        events::make_event(events::row::RegisterLocal{.segment = 1,
                                                      .addr = kFirst,
                                                      .size = kSize,
                                                      .effective = events::Maybe::kUnsaid,
                                                      .observed = false,
                                                      .expected = 0,
                                                      .for_transfers = false},
                           0, {.comm = 1, .comm_id = 1, .device = 0});
    return nanoseconds(rounds, [&](std::size_t) { world->ring.push(event); });
}

// What the allocator's callback does for a segment that comes and goes.
EXPORT double time_segment(World* world, std::size_t rounds) {
    return nanoseconds(rounds, [&](std::size_t i) {
        const std::uintptr_t address = kFirst + (i % 512) * kSize;
        world->registrar.segment_allocated(0, address, kSize);
        world->registrar.segment_freed(0, address, kSize);
    });
}

EXPORT std::size_t peek(World* world, events::Event* out, std::size_t limit, std::size_t skip) {
    return world->ring.peek({out, limit}, skip);
}

EXPORT void mark_drained(World* world, std::size_t count) {
    world->ring.mark_drained(count);
}

EXPORT std::size_t dropped(World* world) {
    return world->ring.dropped();
}
