// Interleavings that need a hand on both sides at once: each case stops one thread inside the
// library, lets another do its part, and looks at what came of it. One line per case; the exit
// status counts those that went wrong.
#include "nccl/group.h"
#include "scripted.h"

using namespace scripted;

namespace {

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
    const auto communicator = world.create(1, library);
    world.allocate(0x10000);
    library.ready = false;
    world.registrar.segment_freed(0, 0x10000, 4096);
    library.ready = true;
    world.allocate(0x20000);
    world.registrar.segment_freed(0, 0x20000, 4096);
    world.registrar.retire(World::pointer_of(1));
    expect(library.registered == library.deregistered,
           "a registration that a free could not undo in time is undone before the destroy");
    expect(communicator->held() == 0, "and is not counted twice");
}

} // namespace

int main() {
    watch(120);
    a_dying_sibling_hides_nobody();
    an_abort_does_not_wait_for_ever();
    a_group_holds_the_gate_of_a_live_sibling();
    a_failed_birth_is_forgotten();
    a_free_that_gave_up_leaves_the_books_right();
    return failures;
}
