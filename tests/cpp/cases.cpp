// Interleavings that need a hand on both sides at once: each case stops one thread inside the
// library, lets another do its part, and looks at what came of it. One line per case; the exit
// status counts those that went wrong.
#include "core/registrar.h"
#include "nccl/api.h"
#include "nccl/group.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <latch>
#include <string_view>
#include <thread>
#include <unistd.h>

using namespace tracehook;

// nccl/group.cpp asks the real library for nothing here; what it may call on the way answers at
// once.
namespace tracehook::nccl {

const Api& api() {
    static const Api stub = [] {
        Api made;
        made.cudaGetDevice = [](int* device) { return *device = 0; };
        made.cudaSetDevice = [](int) { return 0; };
        return made;
    }();
    return stub;
}

int current_device() noexcept {
    return 0;
}

} // namespace tracehook::nccl

namespace {

int failures = 0;

void expect(bool good, std::string_view sentence) {
    std::printf("cases: %s: %.*s\n", good ? "ok" : "FAILED", static_cast<int>(sentence.size()),
                sentence.data());
    std::fflush(stdout);
    failures += good ? 0 : 1;
}

// A place in the library where a call stops until it is told to go on.
struct Stop {
    std::latch reached{1};
    std::latch go_on{1};
    void pass() {
        reached.count_down();
        go_on.wait();
    }
};

struct Library {
    std::atomic<bool> ready{true};
    std::atomic<int> registered{0};
    std::atomic<int> deregistered{0};
    std::atomic<Stop*> in_ready{nullptr};    // the next question stops here
    std::atomic<Stop*> in_register{nullptr}; // the next registration stops here
};

class Scripted final : public core::Communicator {
  public:
    explicit Scripted(Library& library) : library_(library) {}
    core::Outcome register_range(std::uintptr_t address, std::size_t) noexcept override {
        ++library_.registered;
        if (Stop* stop = library_.in_register.exchange(nullptr)) {
            stop->pass();
        }
        return {0, reinterpret_cast<void*>(address)};
    }
    int deregister(void*) noexcept override {
        ++library_.deregistered;
        return 0;
    }
    int remember_device() noexcept override { return 0; }
    void restore_device(int) noexcept override {}
    bool ready() noexcept override {
        if (Stop* stop = library_.in_ready.exchange(nullptr)) {
            stop->pass();
        }
        return library_.ready.load();
    }

  private:
    Library& library_;
};

struct World {
    core::Ring ring{"", 1024};
    core::Registrar registrar{ring};

    ~World() {
        for (const auto& member : registrar.members()) {
            registrar.kill(member->identity().pointer);
        }
    }

    core::Registrar::Member create(std::uintptr_t pointer, Library& library,
                                   const core::Registrar::Member& parent = nullptr) {
        core::Identity identity;
        identity.pointer = pointer_of(pointer);
        identity.device = 0;
        return registrar.add(
            identity, [&](const core::Identity&) { return std::make_unique<Scripted>(library); },
            parent);
    }
    void allocate(std::uintptr_t address) { registrar.segment_allocated(0, address, 4096); }
    void kill(std::uintptr_t pointer) { registrar.kill(pointer_of(pointer)); }

    static void* pointer_of(std::uintptr_t pointer) { return reinterpret_cast<void*>(pointer); }
};

void a_dying_sibling_hides_nobody() {
    World world;
    Library idle, busy, late;
    const auto parent = world.create(1, idle);
    busy.ready = false;
    world.create(2, busy, parent);
    late.ready = false;
    const auto child = world.create(3, late, parent);
    world.allocate(0x10000);
    late.ready = true; // its segment waits for the next pass of the gate

    Stop stop;
    busy.in_ready = &stop;
    std::thread collective([&] {
        if (child->gate().enter(*child)) {
            expect(late.registered == 1,
                   "a collective finds everything registered, though a sibling dies meanwhile");
            child->gate().leave();
        }
    });
    stop.reached.wait();
    world.kill(1);
    stop.go_on.count_down();
    collective.join();
}

void an_abort_does_not_wait_for_ever() {
    World world;
    Library library;
    for (std::uintptr_t i = 1; i <= 10; ++i) {
        world.allocate(i * 0x10000);
    }
    Stop stop;
    library.in_register = &stop;
    std::thread birth([&] { world.create(1, library); });
    stop.reached.wait();
    world.kill(1);
    expect(library.registered == 1, "an abort goes through although a registration hangs");
    stop.go_on.count_down();
    birth.join();
    expect(library.registered == 1, "and nothing is registered when the hang is over");
}

void a_group_holds_the_gate_of_a_live_sibling() {
    World world;
    Library dead, live;
    const auto parent = world.create(1, dead);
    const auto child = world.create(2, live, parent);
    nccl::ThreadGroup& group = nccl::ThreadGroup::mine();
    group.started();
    group.touched(parent);
    group.touched(child);
    world.kill(1);
    int during = -1;
    group.ended(world.registrar, [&] {
        world.allocate(0x10000);
        during = live.registered;
        return 0;
    });
    expect(during == 0, "the end of a group holds the gate, though another communicator behind it "
                        "died in the group");
    expect(live.registered == 1, "and registers afterwards what came meanwhile");
}

void a_failed_birth_is_forgotten() {
    World world;
    nccl::ThreadGroup& group = nccl::ThreadGroup::mine();
    nccl::Comm slot = nullptr; // the caller's variable: it may be anything once the call has failed
    nccl::Birth birth;
    birth.out = &slot;
    birth.device = 0;
    birth.rank = 0;
    birth.size = 1;
    group.started();
    group.expect(birth);
    group.ended(world.registrar, [] { return static_cast<int>(nccl::kSystemError); });
    slot = World::pointer_of(0xDEAD);
    group.started();
    group.ended(world.registrar, [] { return 0; });
    expect(world.registrar.totals().communicators == 0,
           "a communicator whose creation failed is not looked for when the next group ends");
}

// Takes the half minute after which a free stops waiting.
void a_free_that_gave_up_leaves_the_books_right() {
    World world;
    Library library;
    const auto member = world.create(1, library);
    world.allocate(0x10000);
    library.ready = false;
    world.registrar.segment_freed(0, 0x10000, 4096);
    library.ready = true;
    world.allocate(0x20000);
    world.registrar.segment_freed(0, 0x20000, 4096);
    world.registrar.retire(World::pointer_of(1));
    expect(library.registered == library.deregistered,
           "a registration that a free could not undo in time is undone before the destroy");
    expect(member->held() == 0, "and is not counted twice");
}

void on_alarm(int) {
    constexpr char kText[] = "cases: hangs in the case after the last line\n";
    static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
    _exit(100);
}

} // namespace

int main() {
    std::signal(SIGALRM, on_alarm);
    alarm(120);
    a_dying_sibling_hides_nobody();
    an_abort_does_not_wait_for_ever();
    a_group_holds_the_gate_of_a_live_sibling();
    a_failed_birth_is_forgotten();
    a_free_that_gave_up_leaves_the_books_right();
    return failures;
}
