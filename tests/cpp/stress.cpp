// Everything at once, under the sanitizers: segments that come and go, collectives, communicators
// that begin, end and die, shared gates, reused addresses and pointers, and registration switched
// off and on. A device has several allocators, so frees wait side by side. Ends with one line of
// counts.
//
//     stress [rounds]
#include "world.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <unistd.h>

using namespace world;

namespace {

constexpr unsigned kPatience = 120; // seconds; a run takes far fewer
constexpr int kSlots = 24;          // addresses of a device, used again and again
constexpr int kAllocators = 4;      // of a device: each has every fourth address
constexpr std::size_t kSlotBytes = 1 << 20;
constexpr int kPointers = 10;  // of communicators, likewise
constexpr int kLongCalls = 16; // every so many-th call is long

void on_alarm(int) {
    constexpr char kText[] =
        "stress: hangs; attach a debugger to a run with the same number of rounds\n";
    static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
    _exit(3);
}

// One communicator, as the job sees it.
struct Live {
    std::uintptr_t pointer;
    int device;
    std::shared_ptr<Library> library;
    std::atomic<int> enders{
        0}; // threads inside retire() or kill() for it: the pointer is reused after the last
};
using LiveHandle = std::shared_ptr<Live>;

class Job {
  public:
    explicit Job(int rounds) : rounds_(rounds) {
        for (std::uintptr_t i = 1; i <= kPointers; ++i) {
            free_pointers_.push_back(i * 64);
        }
    }

    void run() {
        std::vector<std::thread> threads;
        const auto start = [&](auto body) {
            threads.emplace_back([this, body, seed = threads.size()] {
                std::mt19937 random(static_cast<unsigned>(seed) + 1);
                (this->*body)(random);
            });
        };
        for (int i = 0; i < 2; ++i) {
            start(&Job::allocate);
            start(&Job::allocate);
            start(&Job::call);
            start(&Job::begin_and_end);
        }
        start(&Job::abort_those_that_end);
        start(&Job::make_busy);
        start(&Job::switch_off_and_on);
        std::thread drain([this] { empty_the_ring(); });
        for (std::thread& thread : threads) {
            thread.join();
        }
        finished_.store(true);
        drain.join();
    }

    int judge();

  private:
    using Random = std::mt19937;

    static Patience patience() {
        Patience patience;
        patience.free_for_call = patience.room_for_call = std::chrono::milliseconds(1);
        return patience;
    }
    static int pick(Random& random, int below) {
        return std::uniform_int_distribution<int>(0, below - 1)(random);
    }

    // --- the allocators: one lock each, held during their callbacks ---

    void allocate(Random& random) {
        for (int round = 0; round < 4 * rounds_; ++round) {
            const int device = pick(random, kDevices);
            const int slot = pick(random, kSlots);
            Device& memory = devices_[static_cast<std::size_t>(device)];
            const std::lock_guard guard(
                memory.allocators[static_cast<std::size_t>(slot % kAllocators)]);
            std::size_t& size = memory.sizes[static_cast<std::size_t>(slot)];
            const std::uintptr_t address = (static_cast<std::uintptr_t>(slot) + 1) * kSlotBytes;
            if (size == 0) {
                if (keeper_.has(device, address)) {
                    if (pick(random, 8) == 0) {
                        registrar_.make_room(device);
                    }
                    continue;
                }
                size = static_cast<std::size_t>(1 + pick(random, 4)) * 4096;
                driver_.map(device, address, size);
                registrar_.segment_allocated(device, address, size);
                ++allocated_;
            } else {
                registrar_.segment_freed(device, address, size);
                keeper_.free(device, address);
                size = 0;
            }
        }
    }

    // --- communicators ---

    LiveHandle any_live(Random& random) {
        const std::lock_guard guard(table_mutex_);
        return live_.empty()
                   ? nullptr
                   : live_[static_cast<std::size_t>(pick(random, static_cast<int>(live_.size())))];
    }

    void create(Random& random) {
        auto live = std::make_shared<Live>();
        const LiveHandle parent = pick(random, 3) == 0 ? any_live(random) : nullptr;
        {
            const std::lock_guard guard(table_mutex_);
            if (free_pointers_.empty()) {
                return;
            }
            live->pointer = free_pointers_.back(); // the one that ended last
            free_pointers_.pop_back();
        }
        const auto shared =
            parent ? registrar_.find(reinterpret_cast<void*>(parent->pointer)) : nullptr;
        const auto family = shared ? library_of(shared->identity().id) : nullptr;
        live->device = shared ? shared->identity().device : pick(random, kDevices);
        live->library = std::make_shared<Library>(live->device, driver_, violations_, family.get());
        live->library->set_ready(pick(random, 4) != 0);
        Identity identity;
        identity.pointer = reinterpret_cast<void*>(live->pointer);
        identity.key = live->pointer;
        identity.device = live->device;
        const auto communicator = registrar_.add(
            identity, [&](const Identity&) { return std::make_unique<Seen>(live->library); },
            shared);
        const std::lock_guard guard(table_mutex_);
        libraries_[communicator->identity().id] = live->library;
        live_.push_back(live);
        ++created_;
    }

    void begin_and_end(Random& random) {
        for (int round = 0; round < rounds_; ++round) {
            if (pick(random, 5) < 3) {
                create(random);
                continue;
            }
            LiveHandle ending;
            {
                const std::lock_guard guard(table_mutex_);
                if (live_.size() < 3) {
                    continue;
                }
                const auto chosen = live_.begin() + pick(random, static_cast<int>(live_.size()));
                ending = *chosen;
                live_.erase(chosen);
                ending->enders = 1;
                ending_.push_back(ending);
            }
            end(ending, pick(random, 3) == 0);
        }
        --beginning_and_ending_;
    }

    // The watchdog of a job aborts what another thread is just destroying.
    void abort_those_that_end(Random& random) {
        while (beginning_and_ending_.load() > 0) {
            LiveHandle ending;
            {
                const std::lock_guard guard(table_mutex_);
                if (!ending_.empty() && pick(random, 4) == 0) {
                    ending = ending_.back();
                    ending_.pop_back(); // one abort each
                    ++ending->enders;
                }
            }
            if (ending) {
                end(ending, true);
                ++overtaken_;
            }
            std::this_thread::yield();
        }
    }

    void end(const LiveHandle& live, bool abort) {
        void* const pointer = reinterpret_cast<void*>(live->pointer);
        if (abort) {
            live->library->begin_abort();
            registrar_.kill(pointer);
        } else {
            registrar_.retire(pointer);
        }
        const std::lock_guard guard(table_mutex_);
        if (--live->enders > 0) {
            return;
        }
        live->library->end();
        std::erase(ending_, live);
        free_pointers_.push_back(live->pointer);
        ++ended_;
    }

    void call(Random& random) {
        for (int round = 0; round < 4 * rounds_; ++round) {
            const LiveHandle live = any_live(random);
            if (!live) {
                std::this_thread::yield();
                continue;
            }
            const auto communicator = registrar_.find(reinterpret_cast<void*>(live->pointer));
            if (!communicator || !communicator->gate().enter(*communicator)) {
                continue;
            }
            if (round % kLongCalls == 0) { // waits for ranks: frees do not wait for it
                std::this_thread::sleep_for(2 * patience().free_for_call);
            }
            // Whoever the pointer belongs to by now: the one whose gate is held.
            if (const auto library = library_of(communicator->identity().id)) {
                library->collective();
                ++collectives_;
            }
            communicator->gate().leave();
        }
    }

    std::shared_ptr<Library> library_of(std::uint32_t id) {
        const std::lock_guard guard(table_mutex_);
        const auto found = libraries_.find(id);
        return found != libraries_.end() ? found->second : nullptr;
    }

    // Non-blocking communicators are busy for a while and then ready again, always.
    void make_busy(Random& random) {
        for (int round = 0; round < 2 * rounds_; ++round) {
            const LiveHandle live = any_live(random);
            if (!live) {
                continue;
            }
            live->library->set_ready(false);
            for (int i = pick(random, 20); i > 0; --i) {
                std::this_thread::yield();
            }
            everybody_ready();
        }
    }

    void everybody_ready() {
        std::vector<std::shared_ptr<Library>> all;
        {
            const std::lock_guard guard(table_mutex_);
            for (const auto& [id, library] : libraries_) {
                all.push_back(library);
            }
            if (libraries_.size() > 4 * kPointers) {
                std::erase_if(libraries_,
                              [&](const auto& row) { return row.second.use_count() == 2; });
            }
        }
        for (const auto& library : all) {
            library->set_ready(true);
        }
    }

    void switch_off_and_on(Random& random) {
        for (int round = 0; round < rounds_ / 10; ++round) {
            registrar_.set_registering(false);
            for (int i = pick(random, 50); i > 0; --i) {
                std::this_thread::yield();
            }
            registrar_.set_registering(true);
            for (int i = pick(random, 200); i > 0; --i) {
                std::this_thread::yield();
            }
        }
    }

    void empty_the_ring() {
        std::vector<Event> events(512);
        std::uint64_t last = 0;
        while (!finished_.load() || ring_.peek(events) != 0) {
            const std::size_t count = ring_.peek(events);
            for (std::size_t i = 0; i < count; ++i) {
                if (events[i].seq <= last) {
                    violations_.add("an event out of order in the ring");
                }
                last = events[i].seq;
            }
            ring_.mark_drained(count);
            std::this_thread::yield();
        }
        events_ = last;
    }

    struct Device {
        std::array<std::mutex, kAllocators> allocators; // before every lock of the registrar
        std::array<std::size_t, kSlots> sizes{};
    };

    const int rounds_;
    Violations violations_;
    Driver driver_;
    Ring ring_{"", 4096};
    Keeper keeper_{driver_};
    Registrar registrar_{ring_, {}, patience(), &keeper_};
    std::array<Device, kDevices> devices_;

    std::mutex table_mutex_; // the four tables below; nothing of the registrar is locked inside it
    std::vector<LiveHandle> live_;
    std::vector<LiveHandle> ending_;
    std::vector<std::uintptr_t> free_pointers_;
    std::map<std::uint32_t, std::shared_ptr<Library>> libraries_; // by the registrar's id

    std::atomic<int> beginning_and_ending_{2};
    std::atomic<bool> finished_{false};
    std::atomic<std::uint64_t> allocated_{0}, created_{0}, ended_{0}, collectives_{0},
        overtaken_{0};
    std::uint64_t events_ = 0;
};

// When all threads have ended: every communicator holds exactly what is mapped on its device.
int Job::judge() {
    everybody_ready();
    std::size_t wrong = 0;
    for (const LiveHandle& live : live_) {
        live->library->set_ready(true);
        const auto communicator = registrar_.find(reinterpret_cast<void*>(live->pointer));
        if (!communicator) {
            violations_.add("a live communicator is not known");
            continue;
        }
        communicator->gate().poke();
        wrong += keeper_.count() != 0 && &live == &live_.back() ? 1 : 0;
        const Held held = live->library->held();
        wrong += held != driver_.ranges(live->device);
        wrong += communicator->held() != held.size();
    }
    const std::size_t communicators = live_.size();
    if (registrar_.communicators().size() != communicators) {
        violations_.add("the registrar knows communicators that do not live");
    }
    while (!live_.empty()) {
        const LiveHandle live = live_.back();
        live_.pop_back();
        live->enders = 1;
        end(live, false);
        wrong += !live->library->held().empty();
    }
    const bool good =
        wrong == 0 && violations_.count() == 0 && registrar_.totals().communicators == 0;
    std::printf("stress: %s: %lu segments (%zu buried), %lu communicators (%zu to the end, %lu "
                "aborts during destroy), "
                "%lu collectives, %lu events (%lu dropped); %zu wrong, %zu violations\n",
                good ? "ok" : "FAILED", allocated_.load(), keeper_.buried(), created_.load(),
                communicators, overtaken_.load(), collectives_.load(), events_, ring_.dropped(),
                wrong, violations_.count());
    return good ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 3000;
    std::signal(SIGALRM, on_alarm);
    alarm(kPatience);
    Job job(rounds);
    job.run();
    return job.judge();
}
