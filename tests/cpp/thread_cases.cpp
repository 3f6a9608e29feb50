// Scripted interleavings of threads that make, abort and end communicators, and what is asked of a
// thread or a process that is ending: ok or FAILED, and a sentence, for each.
#include "events/of_thread.h"
#include "nccl/group.h"
#include "scripted.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <vector>

using namespace scripted;

namespace {

// The caller's variable: it may be anything once the call has failed, or after the birth.
nccl::Birth birth_of(nccl::Comm& slot, const registrar::CommunicatorPtr& parent = nullptr) {
    nccl::Birth birth;
    birth.out = &slot;
    birth.device = 0;
    birth.rank = 0;
    birth.size = 1;
    birth.parent = parent;
    birth.made_from = parent ? parent->identity().pointer : nullptr;
    return birth;
}

std::vector<const void*> known(World& world) {
    std::vector<const void*> pointers;
    for (const registrar::CommunicatorPtr& communicator : world.registrar.communicators()) {
        pointers.push_back(communicator->identity().pointer);
    }
    std::ranges::sort(pointers);
    return pointers;
}

void a_failed_birth_is_forgotten() {
    World world;
    nccl::ThreadGroup& group = nccl::ThreadGroup::mine();
    nccl::Comm slot = nullptr;
    group.started();
    group.expect(birth_of(slot));
    group.ended(world.registrar, true, [] { return static_cast<int>(nccl::kSystemError); });
    slot = World::pointer_of(0xDEAD);
    group.started();
    group.ended(world.registrar, true, [] { return 0; });
    expect(known(world).empty(),
           "a communicator whose creation failed is not looked for when the next group ends");
}

void an_aborted_birth_is_forgotten() {
    for (const bool is_parent : {false, true}) {
        World world;
        Library library;
        nccl::Comm slot = World::pointer_of(5);
        nccl::ThreadGroup& thread = nccl::ThreadGroup::mine();
        thread.expect_in_progress(birth_of(slot, world.create(1, library)));
        thread.drop_births_of(World::pointer_of(is_parent ? 1 : 5));
        slot = World::pointer_of(0xDEAD);
        thread.deliver_all(world.registrar);
        expect(known(world).size() == 1,
               is_parent ? "a split in progress is not looked for after its parent's abort"
                         : "a communicator that is aborted while it is made is not looked for");
    }
}

void a_birth_in_a_group_outlives_the_variable_of_its_caller() {
    World world;
    nccl::ThreadGroup& group = nccl::ThreadGroup::mine();
    group.started();
    for (const std::uintptr_t number : {7, 8}) {
        nccl::Comm slot = World::pointer_of(number); // NCCL has written it when the call returns
        nccl::Birth birth = birth_of(slot);
        birth.has_handle();
        group.expect(birth);
        slot = World::pointer_of(0xDEAD);
    }
    group.ended(world.registrar, true, [] { return 0; });
    expect(known(world) == std::vector<const void*>{World::pointer_of(7), World::pointer_of(8)},
           "two communicators of one group are known, though both callers' variables have gone");
}

void another_thread_may_end_what_one_expects() {
    World world;
    Library library;
    auto slot = std::make_unique<nccl::Comm>(nullptr);
    nccl::ThreadGroup& thread = nccl::ThreadGroup::mine();
    thread.expect_in_progress(birth_of(*slot, world.create(1, library)));
    std::thread([&] {
        *slot = World::pointer_of(9);
        nccl::ThreadGroup::mine().deliver_all(world.registrar);
        expect(known(world).size() == 1, "a success elsewhere does not deliver a thread's birth");
        nccl::ThreadGroup::mine().drop_births_of(World::pointer_of(9));
        slot.reset();
    }).join();
    thread.deliver_all(world.registrar);
    expect(known(world).size() == 1, "and what another thread ended is not looked for any more");
}

void what_a_thread_expected_goes_with_it() {
    World world;
    Library library;
    auto slot = std::make_unique<nccl::Comm>(nullptr);
    const auto parent = world.create(1, library);
    std::thread([&] {
        nccl::ThreadGroup::mine().expect_in_progress(birth_of(*slot, parent));
    }).join();
    slot.reset();
    nccl::ThreadGroup::mine().drop_births_of(World::pointer_of(9));
    expect(known(world).size() == 1, "what a thread expected that has ended is not looked at");
}

void an_end_in_a_group_is_over_with_the_group() {
    World world(impatient());
    Library library;
    world.keeper.keeps = true;
    const auto communicator = world.create(1, library);
    world.allocate(0x10000);
    expect(communicator->gate().enter(*communicator), "a call hangs inside the gate");
    world.free(0x10000); // buried
    std::thread([&] {
        nccl::ThreadGroup& group = nccl::ThreadGroup::mine();
        group.started();
        group.expect(std::make_unique<nccl::Ending>(world.registrar, World::pointer_of(1),
                                                    nccl::Ending::How::kAbort));
        expect(world.keeper.let_gone == 0, "an abort in a group keeps what the communicator held");
        group.ended(world.registrar, true, [] { return 0; });
        expect(world.keeper.let_gone == 1, "until the group ends");
    }).join();
}

void an_abort_during_a_call_leaves_its_thread_what_it_looks_at() {
    for (int round = 0; round < 200; ++round) {
        World world;
        Library library;
        registrar::Identity identity;
        identity.pointer = World::pointer_of(1);
        identity.device = 0;
        identity.size = 2;
        identity.when = registrar::When::kAtCalls;
        const auto communicator = world.registrar.add(identity, [&](const registrar::Identity&) {
            return std::make_unique<Scripted>(library);
        });
        world.allocate(0x10000);
        const registrar::Segment segment = *world.registrar.segment_at(0x10000);
        communicator->gate().enter(*communicator); // it is ready afterwards
        communicator->gate().leave();
        Stop stop;
        library.in_register = &stop;
        std::thread call([&] {
            if (communicator->gate().enter(*communicator)) {
                communicator->register_alias(segment, 0x900000,
                                             registrar::RegisteredFor::kCollectives, true);
                communicator->look_at_new_aliases();
                communicator->gate().leave();
            }
        });
        stop.reached.wait();
        std::thread abort([&] { world.kill(1); });
        until([&] { return communicator->dead(); });
        stop.go_on.count_down();
        call.join();
        abort.join();
        if (communicator->held() != 0) {
            expect(false, "an aborted communicator holds nothing");
        }
    }
    expect(true, "an abort does not take from a call the registration that it has just made");
}

void a_childs_exit_leaves_the_parents_slots_alone() {
    const std::string path = "thread_cases." + std::to_string(getpid()) + ".ring";
    {
        events::Ring ring(path, 1024, 4);
        std::shared_ptr<events::CallSlot> slot = ring.take_calls({});
        if (const pid_t child = fork(); child == 0) {
            slot.reset();
            _exit(0);
        } else {
            int status = -1;
            waitpid(child, &status, 0);
            expect(status == 0, "a forked child ends in order");
        }
        expect(ring.calls().unlogged(false).empty(),
               "a slot of calls that a forked child gives up stays the parent's");
    }
    unlink(path.c_str());
}

struct Counted {
    static inline int made = 0;
    int value = ++made;
};

std::optional<int> late; // what a destructor got that ran after the thread's own objects had gone

struct AsksLate {
    ~AsksLate() {
        Counted& second = events::OfThread<Counted>::mine();
        late = second.value;
        delete &second; // else the sanitizer says that nobody will
    }
};

void what_belongs_to_a_thread_can_be_asked_for_at_its_end() {
    std::thread([] {
        static thread_local const AsksLate asks; // made first, so it goes last
        static_cast<void>(&asks);
        events::OfThread<Counted>::mine();
        expect(&events::OfThread<Counted>::mine() == &events::OfThread<Counted>::mine(),
               "a thread has one object of its own");
    }).join();
    expect(late == 2, "and gets another one when the first has gone");
}

} // namespace

int main() {
    watch(120);
    a_failed_birth_is_forgotten();
    an_aborted_birth_is_forgotten();
    a_birth_in_a_group_outlives_the_variable_of_its_caller();
    another_thread_may_end_what_one_expects();
    what_a_thread_expected_goes_with_it();
    an_end_in_a_group_is_over_with_the_group();
    an_abort_during_a_call_leaves_its_thread_what_it_looks_at();
    a_childs_exit_leaves_the_parents_slots_alone();
    what_belongs_to_a_thread_can_be_asked_for_at_its_end();
    return failures;
}
