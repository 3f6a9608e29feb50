// Interleavings that need a hand on both sides at once: each case stops one thread inside the
// library, lets another do its part, and looks at what came of it. One line per case; the exit
// status counts those that went wrong.
#include "events/calls.h"
#include "nccl/group.h"
#include "nccl/registration_calls.h"
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
    group.ended(world.registrar, true, [&] {
        world.allocate(0x10000);
        during = live.registered;
        return 0;
    });
    expect(during == 0, "the end of a group holds the gate, though another communicator behind it "
                        "died in the group");
    expect(live.registered == 1, "and registers afterwards what came meanwhile");
}

void a_free_is_done_by_who_is_inside() {
    World world;
    Library library;
    const auto communicator = world.create(1, library);
    world.allocate(0x10000);
    expect(communicator->gate().enter(*communicator), "a call is inside the gate");
    std::thread free([&] { world.registrar.segment_freed(0, 0x10000, 4096); });
    until([&] { return library.synchronized == 1; });
    expect(library.deregistered == 0, "a free waits for the device first, outside of the gate");
    std::thread next([&] {
        if (communicator->gate().enter(*communicator)) {
            communicator->gate().leave();
        }
    });
    communicator->gate().leave();
    free.join();
    next.join();
    expect(library.deregistered == 1, "and is done by who leaves the gate, or comes next");
}

void a_free_buries_what_a_busy_communicator_holds() {
    World world(impatient());
    world.keeper.keeps = true;
    Library library, idle;
    const auto communicator = world.create(1, library);
    world.create(2, idle);
    world.allocate(0x10000);
    world.allocate(0x20000);
    expect(communicator->gate().enter(*communicator), "a call waits for ranks inside the gate");
    world.free(0x10000);
    const auto begin = std::chrono::steady_clock::now();
    world.free(0x20000);
    expect(std::chrono::steady_clock::now() - begin < impatient().free_for_call,
           "a free returns meanwhile, and the next one at once");
    expect(world.keeper.kept == 2 && world.keeper.let_gone == 0 && library.deregistered == 0,
           "the memory is kept");
    expect(idle.deregistered == 2, "who is not busy undoes his registrations");
    world.registrar.make_room(0);
    expect(world.keeper.let_gone == 0, "and nobody has it while it is registered");
    communicator->gate().leave();
    expect(library.deregistered == 2 && world.keeper.let_gone == 2, "it goes after the call");
}

// Another thread has taken what was buried, and is on its way to the driver with it.
void who_needs_room_waits_for_what_is_leaving() {
    for (const bool is_idle : {false, true}) {
        World world;
        world.keeper.keeps = true;
        Library library;
        const auto communicator = world.create(1, library);
        world.allocate(0x10000);
        library.ready = false;
        world.free(0x10000);
        library.ready = true;
        Stop stop;
        (is_idle ? world.keeper.in_free_idle : world.keeper.in_let_go) = &stop;
        std::thread other([&] {
            communicator->gate().poke();
            world.registrar.free_idle(0);
        });
        stop.reached.wait();
        std::atomic<bool> has_returned{false};
        std::thread asks([&] {
            world.registrar.make_room(0);
            has_returned = true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        expect(!has_returned, is_idle ? "who needs room waits while another thread frees memory"
                                      : "who needs room waits while another thread lets memory go");
        stop.go_on.count_down();
        other.join();
        asks.join();
    }
}

void a_busy_library_keeps_its_memory_until_it_is_ready() {
    World world(impatient());
    world.keeper.keeps = true;
    Library library;
    const auto communicator = world.create(1, library);
    world.allocate(0x10000);
    library.ready = false;
    world.free(0x10000);
    communicator->gate().poke();
    expect(world.keeper.kept == 1 && library.deregistered == 0,
           "a free does not wait for a call in progress");
    library.ready = true;
    world.allocate(0x20000);
    expect(library.deregistered == 1 && world.keeper.let_gone == 1,
           "the next who passes the gate undoes it");
}

void an_abort_keeps_what_is_buried_until_it_returned() {
    World world(impatient());
    world.keeper.keeps = true;
    Library library;
    const auto communicator = world.create(1, library);
    world.allocate(0x10000);
    expect(communicator->gate().enter(*communicator), "a call hangs inside the gate");
    world.free(0x10000);
    {
        const auto ending = world.registrar.kill(World::pointer_of(1));
        communicator->gate().leave();
        expect(world.keeper.kept == 1 && world.keeper.let_gone == 0,
               "while an abort runs, NCCL may have its registrations still");
    }
    expect(world.keeper.let_gone == 1 && library.deregistered == 0, "the memory goes after it");
}

void the_end_of_a_communicator_empties_the_grave() {
    for (const bool is_ready : {true, false}) {
        World world(impatient());
        world.keeper.keeps = true;
        Library library;
        world.create(1, library);
        world.allocate(0x10000);
        library.ready = false;
        world.free(0x10000);
        library.ready = is_ready;
        const int before = world.keeper.idle_freed;
        world.retire(1);
        expect(world.keeper.let_gone == (is_ready ? 1 : 0) && world.keeper.idle_freed > before,
               is_ready ? "a destroy undoes what is buried, and lets the memory go"
                        : "what NCCL is still busy with stays until it has destroyed it");
        world.registrar.ended(World::pointer_of(1));
        expect(world.keeper.let_gone == 1, "after the destroy nothing is buried");
    }
}

void what_cannot_be_undone_keeps_its_memory() {
    for (const bool succeeds_at_end : {true, false}) {
        World world;
        world.keeper.keeps = true;
        Library library;
        const auto communicator = world.create(1, library);
        world.allocate(0x10000);
        library.deregister_result = 3;
        world.free(0x10000);
        expect(library.deregistered == 1 && world.keeper.kept == 1,
               "what the library failed to deregister is buried at once");
        world.allocate(0x20000);
        communicator->gate().poke();
        expect(library.deregistered == 1 && world.keeper.let_gone == 0,
               "its memory stays, and the library is not asked again and again");
        library.deregister_result = succeeds_at_end ? 0 : 3;
        world.retire(1);
        expect(library.deregistered == 3 && world.keeper.let_gone == (succeeds_at_end ? 1 : 0),
               "the end of the communicator tries again");
        world.registrar.ended(World::pointer_of(1));
        expect(world.keeper.let_gone == 1, "and what stays ends with the communicator");
    }
}

void what_can_be_neither_undone_nor_kept_is_forgotten() {
    World world;
    Library library;
    world.create(1, library);
    world.allocate(0x10000);
    library.deregister_result = 3;
    world.free(0x10000);
    expect(library.deregistered == 1, "a free of memory that nobody can keep returns all the same");
    world.retire(1);
    expect(library.deregistered == 1, "and nobody thinks that it is registered still");
}

void a_free_of_what_is_not_held_does_not_wait() {
    World world;
    Library library;
    const auto communicator = world.create(1, library);
    const auto child = world.create(2, library, communicator);
    world.allocate(0x10000);
    world.registrar.set_registering(false);
    expect(communicator->gate().enter(*communicator), "a call is inside the gate");
    world.registrar.segment_freed(0, 0x10000, 4096);
    expect(communicator->gate().begin_calls(*communicator), "it makes a local call");
    world.allocate(0x20000);
    std::thread free([&] { world.registrar.segment_freed(0, 0x20000, 4096); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    communicator->gate().end_calls();
    free.join();
    communicator->gate().leave();
    expect(library.deregistered == 2, "frees of what no communicator holds return meanwhile");
}

void a_free_takes_back_what_a_busy_library_did_not_register() {
    World world;
    Library library;
    const auto communicator = world.create(1, library);
    Stop stop;
    library.in_ready = &stop;
    std::thread born([&] { world.allocate(0x10000); });
    stop.reached.wait();
    library.ready = false;
    std::thread free([&] { world.registrar.segment_freed(0, 0x10000, 4096); });
    until([&] { return library.synchronized == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop.go_on.count_down();
    born.join();
    free.join();
    library.ready = true;
    if (communicator->gate().enter(*communicator)) {
        communicator->gate().leave();
    }
    expect(library.registered == 0,
           "a segment that is freed while the library turns out to be busy is never registered");
}

void a_free_returns_when_the_communicator_dies() {
    World world;
    Library library;
    world.create(1, library);
    world.allocate(0x10000);
    library.ready = false;
    std::thread free([&] { world.registrar.segment_freed(0, 0x10000, 4096); });
    until([&] { return library.synchronized == 1; });
    world.kill(1);
    free.join();
    expect(library.deregistered == 0,
           "a free that waits for a busy library returns at an abort, without a call");
}

void who_dies_waiting_leaves_no_work_behind() {
    World world;
    Library parent_library, child_library;
    const auto parent = world.create(1, parent_library);
    const auto child = world.create(2, child_library, parent);
    expect(parent->gate().enter(*parent), "a call of the parent is inside");
    std::thread waits([&] {
        expect(!child->gate().enter(*child), "a call of the child waits, and does not go in");
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    world.kill(2);
    waits.join();
    world.allocate(0x10000);
    expect(parent_library.registered == 0, "a segment comes while the gate is held");
    parent->gate().leave();
    expect(parent_library.registered == 1, "and is registered although who waited has gone");
}

void undoing_all_waits_for_the_device() {
    World world;
    Library library;
    world.create(1, library);
    world.allocate(0x10000);
    world.registrar.set_registering(false);
    expect(library.synchronized == 1 && library.deregistered == 1,
           "switching off waits for the device before it deregisters");
    world.registrar.set_registering(true);
    world.retire(1);
    expect(library.synchronized == 2 && library.deregistered == 2,
           "and so does the end of a communicator");
}

void what_was_never_registered_needs_no_wait() {
    World world;
    Library library;
    library.ready = false;
    world.create(1, library);
    world.allocate(0x10000);
    world.registrar.segment_freed(0, 0x10000, 4096);
    expect(library.synchronized == 0, "a free of what is only queued does not wait for the device");
}

void an_abort_ends_the_questions_about_a_window() {
    World world;
    world.bank.open(Driver::memory(), 0);
    registrar::Identity identity;
    identity.pointer = World::pointer_of(1);
    identity.device = 0;
    const auto communicator = world.registrar.add(identity, [](const registrar::Identity& own) {
        return std::make_unique<nccl::NcclRegistrationCalls>(own.pointer, own.device, false);
    });
    world.bank.take({1, 0, 0, 4096});
    std::thread scope([&] {
        if (communicator->gate().enter(*communicator)) {
            windows::of(*communicator).register_windows(world.bank.segments());
            communicator->gate().leave();
        }
    });
    until([] { return nccl::window_polls > 2; });
    std::atomic<int> asked{0};
    {
        const registrar::Registrar::Ending ending = world.registrar.kill(World::pointer_of(1));
        asked = nccl::window_polls.load(); // here the library frees the communicator
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        expect(nccl::window_polls == asked, "a window that a non-blocking communicator still makes "
                                            "is not asked for after an abort");
        nccl::window_under_way = false;
    }
    scope.join();
}

void the_oldest_of_very_many_communicators_are_counted_as_one() {
    constexpr std::uint64_t kCommunicators = 20'000;
    constexpr std::uint64_t kBytes = 1 << 20;
    std::vector<events::CallSlot> slots(events::CallTable::kSlots);
    events::CallTable table(slots);
    for (std::uint64_t number = 1; number <= kCommunicators; ++number) {
        events::CallSlot* slot =
            table.take({number, static_cast<std::uint32_t>(number), 0, 2, false});
        slot->tally(events::Tally::kSends, kBytes);
        slot->tally(events::Tally::kReceives, kBytes + number % 7);
        slot->end(false);
        slot->let_go();
        (void)table.unlogged(false); // the log's thread writes it,
        (void)table.unlogged(false); // and then it is free
    }
    const auto rows = table.tallied();
    std::uint64_t calls = 0, bytes = 0, named = 0;
    for (const auto& row : rows) {
        calls += row.entry.count;
        bytes += row.entry.nbytes;
        named += row.comm_id == kCommunicators;
    }
    expect(rows.size() < 5000, "the rows of ended communicators stay few");
    expect(calls == 2 * kCommunicators, "no call is lost");
    expect(bytes > 2 * kCommunicators * kBytes, "no byte is lost");
    expect(named == 2, "the newest communicator has rows of its own");
    expect(rows.front().key == 0 && rows.front().entry.least == kBytes, "the oldest are one");
}

void a_segment_sleeps_until_all_of_its_memory_is_back() {
    World world;
    Library library;
    const auto communicator = world.create(1, library);
    registrar::Registrar& registrar = world.registrar;
    const auto held = [&] { return library.registered - library.deregistered; };
    constexpr std::uintptr_t kPlace = 0x40000;
    world.allocate(kPlace);
    const std::size_t size = registrar.segments().front().size;
    expect(held() == 1, "a segment is registered while nobody knows that it can sleep");
    registrar.memory_unmapped(kPlace, size / 2);
    expect(held() == 0 && registrar.segments().empty(),
           "a segment that loses a part of its memory is deregistered");
    registrar.memory_unmapped(kPlace + size / 2, size / 2);
    expect(!registrar.memory_unmapped(kPlace, size), "it has no memory that could be taken again");
    registrar.memory_mapped(kPlace, size / 2);
    expect(registrar.segments_asleep().size() == 1, "and sleeps until all of it is back");
    registrar.memory_mapped(kPlace + size / 2, size / 2);
    expect(registrar.segments_asleep().empty() && registrar.segments().size() == 1 && held() == 0,
           "then it is a segment again, and is not registered any more");
    registrar.memory_unmapped(kPlace, size);
    world.free(kPlace);
    registrar.memory_mapped(kPlace, size);
    expect(registrar.segments_asleep().empty() && registrar.segments().empty(),
           "one that is freed while it sleeps does not come back");
    registrar.memory_unmapped(kPlace, size);
    world.allocate(kPlace);
    expect(held() == 1, "and other memory at its address is registered as ever");
}

} // namespace

int main() {
    watch(120);
    the_oldest_of_very_many_communicators_are_counted_as_one();
    a_dying_sibling_hides_nobody();
    an_abort_does_not_wait_for_ever();
    a_group_holds_the_gate_of_a_live_sibling();
    a_free_is_done_by_who_is_inside();
    a_free_buries_what_a_busy_communicator_holds();
    who_needs_room_waits_for_what_is_leaving();
    a_busy_library_keeps_its_memory_until_it_is_ready();
    an_abort_keeps_what_is_buried_until_it_returned();
    the_end_of_a_communicator_empties_the_grave();
    what_cannot_be_undone_keeps_its_memory();
    what_can_be_neither_undone_nor_kept_is_forgotten();
    a_free_of_what_is_not_held_does_not_wait();
    a_free_takes_back_what_a_busy_library_did_not_register();
    a_free_returns_when_the_communicator_dies();
    who_dies_waiting_leaves_no_work_behind();
    undoing_all_waits_for_the_device();
    what_was_never_registered_needs_no_wait();
    an_abort_ends_the_questions_about_a_window();
    a_segment_sleeps_until_all_of_its_memory_is_back();
    return failures;
}
