// Interleavings of windows and the bank's memory, one thread stopped inside the library while
// another does its part. One line per sentence; the exit status counts those that went wrong.
#include "nccl/placement.h"
#include "process/symmetric_memory.h"
#include "scripted.h"

#include <future>
#include <sanitizer/lsan_interface.h>

using namespace scripted;
using process::BoundCommunicator;

namespace {

constexpr std::size_t kBytes = 4096;

// A bank that is open, and segments in it.
struct Symmetric : World {
    explicit Symmetric(std::size_t limit = 0) { bank.open(Driver::memory(), limit); }

    std::uint64_t take() {
        void* const memory = bank.take({1, 1, 0, kBytes});
        const auto segment = bank.find(reinterpret_cast<std::uintptr_t>(memory));
        return segment ? segment->id : 0;
    }
    windows::PoolSegment at(std::uint64_t segment) {
        return bank.get(segment).value_or(windows::PoolSegment{});
    }
    void give_back(std::uint64_t segment) { bank.give_back(at(segment).address); }
    std::uint32_t windows(std::uint64_t segment) { return at(segment).windows; }
    BoundCommunicator communicator(const registrar::CommunicatorPtr& registrations) {
        return BoundCommunicator(registrations);
    }
};

void an_abort_before_the_confirmation() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t segment = world.take();
    communicator.register_windows({segment});
    {
        const registrar::Registrar::Ending ending = world.registrar.kill(World::pointer_of(1));
        expect(!communicator.confirm_windows(),
               "a communicator that died between registration and confirmation confirms nothing");
        communicator.drop_windows();
        world.give_back(segment);
        world.bank.release_idle();
        expect(world.windows(segment) == 1 && world.at(segment).retired,
               "and its windows count until the abort has returned");
    }
    expect(world.windows(segment) == 0, "and no longer");
    expect(library.windows_undone == 0 && library.synchronized == 0,
           "and the library is called no more");
}

void an_abort_with_confirmed_windows() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t segment = world.take();
    const auto address = World::pointer_of(world.at(segment).address);
    communicator.register_windows({segment});
    communicator.confirm_windows();
    world.give_back(segment);
    const int synchronized = Driver::the().synchronized;
    {
        const registrar::Registrar::Ending ending = world.registrar.kill(World::pointer_of(1));
        world.bank.release_idle();
        expect(Driver::the().mapped(address),
               "memory is not released while a communicator that has a window on it is aborted");
    }
    expect(world.windows(segment) == 0 && Driver::the().synchronized == synchronized,
           "an abort does not wait for the device, where other communicators may hang");
    Library other;
    world.create(2, other);
    world.retire(2);
    expect(!Driver::the().mapped(address), "what an abort leaves idle goes with the next destroy");
}

void a_retire_before_the_confirmation() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t segment = world.take();
    communicator.register_windows({segment});
    world.retire(1);
    expect(library.windows_undone == 1 && world.windows(segment) == 0,
           "a destroy undoes windows that nobody confirmed");
    expect(!communicator.confirm_windows() && communicator.drop_windows() == 0,
           "and whoever comes to confirm them finds none");
}

void an_abort_ends_a_registration_that_hangs() {
    for (const int result : {0, 6}) {
        Symmetric world;
        Library library;
        library.window_result = result;
        // An abort that waits for a call would wait for ever here, and watch() tell of it.
        registrar::Patience patience;
        patience.abort_for_call = std::chrono::hours(1);
        registrar::Registrar registrar(world.ring, windows::in(world.bank), patience);
        registrar::Identity identity;
        identity.pointer = World::pointer_of(1);
        identity.device = 0;
        identity.size = 2;
        BoundCommunicator communicator =
            world.communicator(registrar.add(identity, [&](const registrar::Identity&) {
                return std::make_unique<Scripted>(library);
            }));
        const std::uint64_t first = world.take();
        const std::uint64_t second = world.take();
        Stop stop;
        library.in_window = &stop;
        std::thread registering([&] { communicator.register_windows({first, second}); });
        stop.reached.wait();
        registrar.kill(identity.pointer);
        expect(library.windows_made == 1,
               "an abort does not wait for a registration of a window that hangs");
        stop.go_on.count_down();
        registering.join();
        communicator.drop_windows();
        expect(library.windows_made == 1 && library.windows_undone == 0,
               "and the library is not called again when the hang is over");
        expect(world.windows(first) == 0 && world.windows(second) == 0,
               "and no count is left, however the call returned");
    }
}

void a_segment_is_kept_while_it_is_registered() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t first = world.take();
    const std::uint64_t second = world.take();
    const auto memory = World::pointer_of(world.at(second).address);
    Stop stop;
    library.in_window = &stop;
    std::thread registering([&] { communicator.register_windows({first, second}); });
    stop.reached.wait();
    world.give_back(second);
    expect(Driver::the().mapped(memory),
           "a segment that is given back while it waits for its window is not released");
    stop.go_on.count_down();
    registering.join();
    communicator.drop_windows();
    expect(world.windows(first) == 0 && world.windows(second) == 0,
           "and its count is right afterwards");
    world.bank.release_idle();
    expect(!Driver::the().mapped(memory), "and it can be released then");
}

void a_segment_that_is_gone_is_not_registered() {
    Symmetric world;
    Library library;
    const auto registrations = world.create(1, library);
    BoundCommunicator communicator = world.communicator(registrations);
    const std::uint64_t segment = world.take();
    const std::uint64_t gone = world.take();
    const windows::PoolSegment copy = world.at(gone);
    world.give_back(gone);
    registrations->gate().enter(*registrations);
    const auto outcomes = windows::of(*registrations).register_windows({world.at(segment), copy});
    registrations->gate().leave();
    expect(outcomes.empty() && library.windows_made == 0 && world.windows(segment) == 0,
           "if one segment is gone nothing is registered and nothing counted");
}

void failures_are_not_counted() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t first = world.take();
    const std::uint64_t second = world.take();
    library.window_result = 6;
    expect(communicator.register_windows({first, second}).size() == 1 &&
               world.windows(first) == 0 && world.windows(second) == 0,
           "a window that the library refused, and those after it, are not counted");
}

void an_abort_waits_for_a_deregistration() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t segment = world.take();
    communicator.register_windows({segment});
    communicator.confirm_windows();
    Stop stop;
    library.in_window_undone = &stop;
    std::thread trimming([&] { communicator.deregister_windows({segment}); });
    stop.reached.wait();
    auto killing = std::async(std::launch::async, [&] { world.kill(1); });
    while (!communicator->dead()) {
        std::this_thread::yield();
    }
    expect(killing.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout,
           "an abort waits for a deregistration that is under way, which must not meet the end");
    stop.go_on.count_down();
    killing.wait();
    trimming.join();
    expect(world.windows(segment) == 0, "and the window is counted down once");
}

void a_destroy_that_is_aborted() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t first = world.take();
    const std::uint64_t second = world.take();
    communicator.register_windows({first, second});
    communicator.confirm_windows();
    Stop stop;
    library.in_window_undone = &stop;
    std::thread destroying([&] { world.retire(1); });
    stop.reached.wait();
    std::thread killing([&] { world.kill(1); });
    while (!communicator->dead()) {
        std::this_thread::yield();
    }
    stop.go_on.count_down();
    destroying.join();
    killing.join();
    expect(library.windows_undone == 1 && world.windows(first) == 0 && world.windows(second) == 0,
           "a destroy that an abort overtakes makes no further call and leaves no count");
}

void a_member_that_nobody_ended() {
    Symmetric world;
    Library library;
    const std::uint64_t confirmed = world.take();
    const std::uint64_t unconfirmed = world.take();
    {
        registrar::Grave grave([](const registrar::Segment&) {});
        auto gate = std::make_shared<registrar::Gate>(registrar::Patience{}, grave);
        registrar::Communicator communicator({}, std::make_unique<Scripted>(library), gate,
                                             world.ring, windows::in(world.bank));
        windows::CommunicatorWindows& windows = windows::of(communicator);
        windows.register_windows({world.at(confirmed)});
        windows.confirm_windows();
        windows.register_windows({world.at(unconfirmed)});
    }
    expect(world.windows(confirmed) == 0 && world.windows(unconfirmed) == 0,
           "a communicator that goes without an end leaves no count");
}

void retired_memory_is_quiet_before_it_serves_again() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t segment = world.take();
    communicator.register_windows({segment});
    communicator.confirm_windows();
    Stop stop;
    Driver::the().in_synchronize = &stop;
    auto freeing = std::async(std::launch::async, [&] { world.give_back(segment); });
    expect(
        freeing.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout,
        "a segment that is given back waits for the device's work, as a free by the driver does");
    if (freeing.wait_for(std::chrono::seconds(0)) == std::future_status::timeout) {
        expect(world.take() != segment, "and does not serve again before that");
        stop.go_on.count_down();
    }
    freeing.wait();
    Driver::the().in_synchronize = nullptr;
    expect(world.take() == segment, "and does afterwards");
}

void the_limit_counts_what_is_being_made() {
    Symmetric world(kBytes);
    Stop stop;
    Driver::the().in_allocate = &stop;
    std::thread growing([&] { world.bank.take({1, 1, 0, kBytes}); });
    stop.reached.wait();
    const void* const second = world.bank.take({1, 1, 0, kBytes});
    stop.go_on.count_down();
    growing.join();
    expect(second == nullptr,
           "two threads that grow a pool at once do not pass the limit together");
    expect(world.bank.last_refusal().held == kBytes, "and the refusal tells what the other took");
}

void a_comparison_that_outlives_its_communicator() {
    const __lsan::ScopedDisabler leaks_on_purpose; // set_verification()
    Symmetric world;
    Library library, other;
    const std::uint64_t segment = world.take();
    world.create(2, other);
    {
        BoundCommunicator communicator = world.communicator(world.create(1, library));
        communicator.register_windows({segment});
        communicator.confirm_windows();
    }
    nccl::set_verification([&](registrar::Communicator&, const auto&) {
        world.kill(1);
        world.registrar.find(World::pointer_of(2));
        return std::string();
    });
    nccl::pretend_capture = true;
    void* const buffer = World::pointer_of(world.at(segment).address);
    const registrar::CommunicatorPtr& found = world.registrar.find(World::pointer_of(1));
    // The address sanitizer tells if the communicator is touched after it is gone.
    const nccl::Call call{0, buffer, buffer, 1, nccl::kFloat32, nullptr, false};
    nccl::Checked checked;
    expect(nccl::check_placement(found, call, checked) == 0,
           "a communicator that ends while its ranks compare is not touched after it is gone");
    nccl::pretend_capture = false;
    nccl::set_verification({});
}

void a_captured_graph_pins_a_roots_buffer() {
    Symmetric world;
    Library library;
    BoundCommunicator communicator = world.communicator(world.create(1, library));
    const std::uint64_t segment = world.take();
    communicator.register_windows({segment});
    communicator.confirm_windows();
    const void* const buffer = World::pointer_of(world.at(segment).address);
    windows::Windows& windows = windows::table_of(*communicator);
    const auto look = windows.look(4, {nullptr, kBytes, windows::Compare::kWhere},
                                   {buffer, kBytes, windows::Compare::kNothing});
    windows.pin(look);
    expect(look.in_window && windows.list().front().pinned,
           "a captured graph keeps the window of a buffer that the ranks do not compare");
    expect(look.use.receive == windows::Place{}, "though its place is no part of the comparison");
}

void blocks_are_pending_between_two_events() {
    Symmetric world;
    windows::PendingBlocks pending(world.bank);
    expect(world.bank.span()[1] == 0, "without memory of pools no free is looked at");
    const std::uintptr_t ours = world.at(world.take()).address;
    const std::uintptr_t foreign = 0x10;
    expect(world.bank.span()[0] <= ours && ours + kBytes <= world.bank.span()[1],
           "all memory of pools is in the span");
    pending.free(0, ours);
    pending.freed(0, ours);
    expect(!pending.maybe(0), "a free that ends at once leaves nothing");
    pending.free(0, foreign);
    expect(pending.maybe(0) && !pending.any(0), "memory of others is no pool's");
    pending.free(0, ours);
    pending.free(0, ours + 512);
    pending.free(0, foreign + 512);
    pending.freed(0, foreign + 512);
    pending.freed(0, foreign);
    expect(pending.any(0) && !pending.maybe(1), "two blocks are pending, on one device");
    pending.freed(0, ours + 512);
    expect(pending.any(0), "one is left");
    pending.freed(0, ours);
    expect(!pending.maybe(0), "none is, in whatever order they end");
    pending.free(-1, ours);
    pending.free(1 << 20, ours);
    expect(!pending.maybe(-1) && !pending.any(1 << 20), "a device that cannot be is none");
}

} // namespace

int main() {
    watch(120);
    an_abort_before_the_confirmation();
    an_abort_with_confirmed_windows();
    a_retire_before_the_confirmation();
    an_abort_ends_a_registration_that_hangs();
    a_segment_is_kept_while_it_is_registered();
    a_segment_that_is_gone_is_not_registered();
    failures_are_not_counted();
    an_abort_waits_for_a_deregistration();
    a_destroy_that_is_aborted();
    a_member_that_nobody_ended();
    retired_memory_is_quiet_before_it_serves_again();
    the_limit_counts_what_is_being_made();
    a_comparison_that_outlives_its_communicator();
    a_captured_graph_pins_a_roots_buffer();
    blocks_are_pending_between_two_events();
    return failures;
}
