// What the placement check of a known use costs, on the very code of tracehook/cpp: a registrar
// with one communicator that has windows and does nothing. Built by benchmarks/native.py, loaded
// into a process with NCCL and CUDA. Every time_*() returns nanoseconds for the whole loop.
#include "nccl/placement.h"
#include "nccl/api.h"
#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <chrono>
#include <mutex>
#include <random>
#include <vector>

using namespace tracehook;

namespace {

constexpr std::size_t kSize = std::size_t{12} << 20;
constexpr std::size_t kPlaces = 4; // known uses in each window
constexpr std::size_t kCount = 4096;
constexpr std::uint32_t kAllReduce = 0; // position in nccl/calls.def

class Silent final : public registrar::RegistrationCalls {
  public:
    registrar::Outcome register_range(std::uintptr_t, std::size_t) noexcept override { return {}; }
    int deregister(void*) noexcept override { return 0; }
    registrar::Outcome register_window(std::uintptr_t, std::size_t) noexcept override { return {}; }
    int deregister_window(void*) noexcept override { return 0; }
    void synchronize() noexcept override {}
    int remember_device() noexcept override { return 0; }
    void restore_device(int) noexcept override {}
    bool ready() noexcept override { return true; }
};

struct World {
    events::Ring ring{"", 65536};
    windows::Bank bank{ring};
    registrar::Registrar registrar{ring, windows::in(bank)};
    registrar::CommunicatorPtr communicator;
    std::vector<void*> buffers; // of the known uses, in no order

    windows::Windows::Lookup look(void* buffer) {
        const windows::Side side{buffer, kCount, windows::Compare::kWhere};
        return windows::table_of(*communicator).look(kAllReduce, side, side);
    }
    void accept(void* buffer) {
        const windows::Side side{buffer, kCount, windows::Compare::kWhere};
        windows::table_of(*communicator).accept(look(buffer), side, side);
    }
};

template <typename Body> double nanoseconds(Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin)
        .count();
}

// Takes the known buffers in turn. The sum keeps the compiler from leaving the calls out.
template <typename Call> double for_buffers(World& world, std::size_t calls, Call&& call) {
    std::size_t next = 0;
    std::size_t sum = 0;
    const double elapsed = nanoseconds([&] {
        for (std::size_t i = 0; i < calls; ++i) {
            sum += call(world.buffers[next]);
            if (++next == world.buffers.size()) {
                next = 0;
            }
        }
    });
    return sum == calls ? elapsed : -1;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Never destroyed. Its windows are known, and not pinned by a captured graph.
EXPORT World* make_world(std::size_t windows) {
    auto* const world = new World;
    registrar::Identity identity;
    identity.pointer = world;
    identity.device = 0;
    identity.rank = 0;
    identity.size = 8;
    world->communicator = world->registrar.add(
        identity, [](const registrar::Identity&) { return std::make_unique<Silent>(); });
    for (std::size_t i = 0; i < windows; ++i) {
        const std::uintptr_t address = (std::uintptr_t{1} << 40) + 2 * i * kSize;
        windows::table_of(*world->communicator).install({0, i + 1, address, kSize, world, false});
        for (std::size_t place = 0; place < kPlaces; ++place) {
            world->buffers.push_back(reinterpret_cast<void*>(address + place * (kSize / kPlaces)));
        }
    }
    std::shuffle(world->buffers.begin(), world->buffers.end(), std::mt19937(1));
    for (void* buffer : world->buffers) {
        world->accept(buffer);
    }
    return world;
}

EXPORT void pin_all(World* world) {
    for (void* buffer : world->buffers) {
        windows::table_of(*world->communicator).pin(world->look(buffer));
    }
}

// Where the buffers lie, and whether that is known: takes the mutex of the windows.
EXPORT double time_look(World* world, std::size_t calls) {
    return for_buffers(*world, calls, [&](void* buffer) { return world->look(buffer).known; });
}

// All that stands between torch's call and the gate: find the communicator, and check.
EXPORT double time_check(World* world, void* stream, std::size_t calls) {
    constexpr int kUint8 = 1;
    return for_buffers(*world, calls, [&](void* buffer) {
        const registrar::CommunicatorPtr& communicator = world->registrar.find(world);
        nccl::Checked checked;
        const nccl::Call call{kAllReduce, buffer, buffer, kCount, kUint8, stream, false};
        return nccl::check_placement(communicator, call, checked) == 0;
    });
}

EXPORT double time_find(World* world, std::size_t calls) {
    return for_buffers(*world, calls,
                       [&](void*) { return world->registrar.find(world) != nullptr; });
}

// What tracehook does at a collective without windows: find the communicator, pass its gate; and,
// if it is to be `counted`, count the call in the ring (events/calls.h); at 2 also by its kind
// (events/tally.h), without asking CUDA whether the stream is captured.
EXPORT double time_passage(World* world, std::size_t calls, int counted) {
    const auto passes = [&](const registrar::CommunicatorPtr& communicator) {
        return communicator->gate().enter(*communicator);
    };
    if (counted == 0) {
        return for_buffers(*world, calls, [&](void*) {
            const registrar::CommunicatorPtr& communicator = world->registrar.find(world);
            const bool entered = passes(communicator);
            communicator->gate().leave();
            return entered;
        });
    }
    return for_buffers(*world, calls, [&](void*) {
        const registrar::CommunicatorPtr& communicator = world->registrar.find(world);
        const bool entered = passes(communicator);
        events::CallSlot* const slot = communicator->calls();
        if (slot != nullptr) {
            slot->collective_begins(kAllReduce, kCount, -1);
        }
        asm volatile("" ::: "memory"); // where NCCL is called
        if (slot != nullptr) {
            slot->collective_returned();
            if (counted == 2) {
                slot->tally(kAllReduce | nccl::kFloat32 << 8, kCount);
            }
        }
        communicator->gate().leave();
        return entered;
    });
}

// A mutex that nobody else wants.
EXPORT double time_mutex(World* world, std::size_t calls) {
    std::mutex mutex;
    return for_buffers(*world, calls, [&](void*) {
        const std::lock_guard guard(mutex);
        return true;
    });
}

EXPORT double time_capturing(World* world, void* stream, std::size_t calls) {
    return for_buffers(*world, calls, [&](void*) { return !nccl::capturing(stream); });
}
