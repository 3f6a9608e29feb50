// Windows and the bank, everything at once, under the sanitizers: segments that are taken and given
// back, windows that are registered, confirmed, dropped and deregistered, collectives that look
// their places up, communicators that begin, end and die meanwhile. Ends with one line of counts.
//
//     symmetric [rounds]
#include "process/symmetric_memory.h"
#include "windows/scope_stack.h"
#include "world.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <set>
#include <unistd.h>
#include <utility>

using namespace world;
using namespace tracehook::windows;
using tracehook::process::BoundCommunicator;

namespace {

constexpr unsigned kPatience = 120; // seconds; a run takes far fewer
constexpr std::size_t kPage = 1 << 16;
constexpr int kPools = 2;
constexpr int kPointers = 6; // of communicators, used again and again
constexpr std::size_t kLimit = 48 * kPage;

void on_alarm(int) {
    constexpr char kText[] =
        "symmetric: hangs; attach a debugger to a run with the same number of rounds\n";
    static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
    _exit(3);
}

int pick(std::mt19937& random, int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
}

// The memory behind the bank: knows what is mapped, which of it has windows, and which may still be
// used by kernels. The bank's functions get no pointer to it, so there is one.
class Device {
  public:
    static Device& the() {
        static Device device;
        return device;
    }

    void* allocate(std::size_t size) {
        std::this_thread::yield();
        const std::lock_guard guard(mutex_);
        // The address that went last comes first, as with a real driver.
        std::vector<std::uintptr_t>& used = used_[size];
        std::uintptr_t address = next_;
        if (used.empty()) {
            next_ += size;
        } else {
            address = used.back();
            used.pop_back();
        }
        mapped_[address] = {size, current, 0, false};
        ++allocated_;
        return reinterpret_cast<void*>(address);
    }
    int release(void* memory) {
        const std::lock_guard guard(mutex_);
        const auto found = mapped_.find(reinterpret_cast<std::uintptr_t>(memory));
        if (found == mapped_.end()) {
            violations.add("released, but it is not mapped");
            return 1;
        }
        if (found->second.windows != 0) {
            violations.add("released, but a communicator has a window on it");
        }
        if (found->second.device != current) {
            violations.add("released while another device is current");
        }
        if (found->second.busy) {
            violations.add("released, but kernels may still use it");
        }
        used_[found->second.size].push_back(found->first);
        mapped_.erase(found);
        ++released_;
        return 0;
    }
    void synchronize() {
        std::this_thread::yield();
        const std::lock_guard guard(mutex_);
        for (auto& [address, range] : mapped_) {
            range.busy = range.busy && range.device != current;
        }
    }

    // A tensor is made: what used the memory before must be done with it.
    void use(std::uintptr_t address) {
        const std::lock_guard guard(mutex_);
        const auto found = mapped_.find(address);
        if (found == mapped_.end()) {
            violations.add("given out, but it is not mapped");
        } else if (std::exchange(found->second.busy, true)) {
            violations.add("given out, but kernels may still use it");
        }
    }
    void add_windows(std::uintptr_t address, int count) {
        const std::lock_guard guard(mutex_);
        const auto found = mapped_.find(address);
        if (found == mapped_.end()) {
            violations.add("a window on memory that is not mapped");
        } else {
            found->second.windows += count;
        }
    }

    std::size_t mapped() const {
        const std::lock_guard guard(mutex_);
        return mapped_.size();
    }
    std::size_t windows() const {
        const std::lock_guard guard(mutex_);
        std::size_t count = 0;
        for (const auto& [address, range] : mapped_) {
            count += static_cast<std::size_t>(range.windows);
        }
        return count;
    }
    std::uint64_t allocated() const { return allocated_; } // when all threads have ended
    std::uint64_t released() const { return released_; }

    static inline thread_local int current = 0;
    Violations violations;

  private:
    struct Range {
        std::size_t size;
        int device;
        int windows;
        bool busy;
    };

    mutable std::mutex mutex_; // all of it; only that of the violations is locked inside it
    std::map<std::uintptr_t, Range> mapped_;
    std::map<std::size_t, std::vector<std::uintptr_t>> used_; // addresses by size
    std::uintptr_t next_ = std::uintptr_t{1} << 40;
    std::uint64_t allocated_ = 0;
    std::uint64_t released_ = 0;
};

Memory memory() {
    return {[](std::size_t size) { return Device::the().allocate(size); },
            [](void* memory) { return Device::the().release(memory); },
            [] { Device::the().synchronize(); },
            [](int device) { return std::exchange(Device::current, device); }};
}

// The library's side of one communicator: local registrations as in world.h, and windows. Those too
// have no lock: the gate must be enough, until an abort, which takes what is left.
class WindowLibrary final {
  public:
    explicit WindowLibrary(std::shared_ptr<Library> library, bool supported)
        : library_(std::move(library)), supported_(supported) {}

    Outcome add(std::uintptr_t address) {
        if (!supported_) {
            return {};
        }
        const int turn = ++calls_; // a write, for the thread sanitizer
        for (int i = 0; i < turn % 7; ++i) {
            std::this_thread::yield(); // waits for the other ranks
        }
        const std::lock_guard guard(mutex_);
        if (aborted_) {
            return {6, nullptr};
        }
        if (turn % 31 == 0) {
            return {1, nullptr};
        }
        windows_[++last_handle_] = address;
        Device::the().add_windows(address, 1);
        return {0, reinterpret_cast<void*>(last_handle_)};
    }
    int remove(void* handle) {
        ++calls_;
        const std::lock_guard guard(mutex_);
        const auto found = windows_.find(reinterpret_cast<std::uintptr_t>(handle));
        if (aborted_ || found == windows_.end()) {
            Device::the().violations.add("a window is deregistered that is not there");
            return 5;
        }
        Device::the().add_windows(found->second, -1);
        windows_.erase(found);
        return 0;
    }
    // What the abort does, after the registrar was told and before it hears that it is done.
    void abort() {
        const std::lock_guard guard(mutex_);
        aborted_ = true;
        for (const auto& [handle, address] : std::exchange(windows_, {})) {
            Device::the().add_windows(address, -1);
        }
    }
    bool empty() const {
        const std::lock_guard guard(mutex_);
        return windows_.empty();
    }

    Library& local() const { return *library_; }

  private:
    const std::shared_ptr<Library> library_;
    const bool supported_;
    mutable std::mutex mutex_; // between an abort and the call that it ends: not of calls_
    std::map<std::uintptr_t, std::uintptr_t> windows_; // address by handle
    std::uintptr_t last_handle_ = 0;
    bool aborted_ = false;
    int calls_ = 0; // thread inside the gate
};

class SeenWithWindows final : public RegistrationCalls {
  public:
    explicit SeenWithWindows(std::shared_ptr<WindowLibrary> library)
        : library_(std::move(library)) {}
    Outcome register_range(std::uintptr_t address, std::size_t size) noexcept override {
        return library_->local().add({address, size});
    }
    int deregister(void* handle) noexcept override { return library_->local().remove(handle); }
    Outcome register_window(std::uintptr_t address, std::size_t) noexcept override {
        return library_->add(address);
    }
    int deregister_window(void* handle) noexcept override { return library_->remove(handle); }
    void synchronize() noexcept override { Device::the().synchronize(); }
    int remember_device() noexcept override { return Device::current; }
    void restore_device(int device) noexcept override { Device::current = device; }
    bool ready() noexcept override { return library_->local().ready(); }

  private:
    const std::shared_ptr<WindowLibrary> library_;
};

struct Live {
    void* pointer;
    int device;
    std::shared_ptr<WindowLibrary> library;
    std::shared_ptr<Communicator> communicator;
    std::mutex planning;        // one plan of windows at a time, as in Python
    std::atomic<int> enders{1}; // threads that end it
};
using LiveHandle = std::shared_ptr<Live>;

class Job {
  public:
    explicit Job(int rounds) : rounds_(rounds) {
        bank_.open(memory(), kLimit);
        for (std::uintptr_t i = 1; i <= kPointers; ++i) {
            free_pointers_.push_back(reinterpret_cast<void*>(i * 64));
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
            start(&Job::register_windows);
            start(&Job::collectives);
        }
        start(&Job::begin_and_end);
        start(&Job::abort_those_that_end);
        start(&Job::release);
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

    int judge();

  private:
    using Random = std::mt19937;

    struct Allocator {
        std::mutex mutex; // as torch's: before every lock of ours
        std::set<std::pair<std::uintptr_t, std::size_t>> blocks;
    };

    // --- the allocator: one lock per device, held during its callbacks ---

    void allocate(Random& random) {
        while (busy_.load() > 0) {
            const int device = pick(random, kDevices);
            Device::current = device;
            Allocator& allocator = allocators_[static_cast<std::size_t>(device)];
            const std::unique_lock lock(allocator.mutex);
            if (allocator.blocks.size() < 12 && pick(random, 3) != 0) {
                grow(random, device, allocator);
            } else if (!allocator.blocks.empty()) {
                const auto chosen =
                    std::next(allocator.blocks.begin(),
                              pick(random, static_cast<int>(allocator.blocks.size())));
                give_back(device, *chosen);
                allocator.blocks.erase(chosen);
            }
        }
    }

    void grow(Random& random, int device, Allocator& allocator) {
        const std::uint32_t pool = static_cast<std::uint32_t>(pick(random, kPools));
        const std::size_t size = kPage << pick(random, 3);
        ScopeStack::enter({pool, 1, device, this, {}});
        void* const memory = bank_.take({pool, 1, device, size});
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        if (memory != nullptr) {
            Device::the().use(address);
            driver_.map(device, address, size);
            registrar_.segment_allocated(device, address, size);
            ScopeStack::block_allocated(bank_, device, address + size / 2);
            allocator.blocks.insert({address, size});
        }
        if (ScopeStack::leave().size() != (memory != nullptr ? 1 : 0)) {
            violations().add("a scope did not see its allocation");
        }
    }

    // As torch does it: the event, and then the memory.
    void give_back(int device, const std::pair<std::uintptr_t, std::size_t>& block) {
        registrar_.segment_freed(device, block.first, block.second);
        driver_.unmap(device, block.first);
        if (!bank_.give_back(block.first)) {
            violations().add("the bank does not know its own memory");
        }
    }

    // --- windows ---

    std::vector<std::uint64_t> some_segments(Random& random, int device) {
        std::vector<std::uint64_t> chosen;
        for (const PoolSegment& segment : bank_.segments()) {
            if (segment.device == device && chosen.size() < 3 && pick(random, 3) == 0) {
                chosen.push_back(segment.id);
            }
        }
        return chosen;
    }

    void register_windows(Random& random) {
        while (busy_.load() > 0) {
            const LiveHandle live = any_live(random);
            const auto found = find(live);
            if (!found) {
                std::this_thread::yield();
                continue;
            }
            BoundCommunicator communicator(found);
            const std::lock_guard guard(live->planning);
            const std::vector<std::uint64_t> chosen = some_segments(random, live->device);
            if (pick(random, 4) == 0) {
                undone_ += communicator.deregister_windows(chosen);
                continue;
            }
            Windows& windows = table_of(*found);
            const std::uint64_t calls = windows.raise_fence(Windows::Fence::kRegistration);
            const bool level = communicator.wait_for_calls(calls, 0, std::chrono::seconds(1));
            const auto wanted = communicator.missing(chosen);
            const auto outcomes = communicator.register_windows(wanted);
            const bool good = outcomes.size() == wanted.size() &&
                              std::ranges::all_of(outcomes, [](const Outcome& outcome) {
                                  return outcome.handle != nullptr;
                              });
            made_ += outcomes.size();
            std::this_thread::yield(); // the ranks compare how it went
            if (good && pick(random, 8) != 0) {
                communicator.confirm_windows();
            } else if (pick(random, 8) != 0) { // else it was interrupted
                communicator.drop_windows();
            }
            const bool moved = windows.calls() != calls || windows.flights() != 0;
            if (level && moved && !found->dead()) { // whose calls no longer wait
                violations().add("a call passed a fence");
            }
            windows.lower_fence(Windows::Fence::kRegistration);
        }
    }

    void collectives(Random& random) {
        while (busy_.load() > 0) {
            const LiveHandle live = any_live(random);
            const auto found = find(live);
            if (!found) {
                std::this_thread::yield();
                continue;
            }
            Windows& windows = table_of(*found);
            const bool looks = windows.count() != 0 && look(random, windows);
            if (found->gate().enter(*found)) {
                if (looks) {
                    windows.land();
                }
                found->gate().leave();
            }
        }
    }

    // True if a call was counted.
    bool look(Random& random, Windows& windows) {
        const std::vector<Window> all = windows.list();
        if (all.empty()) {
            return false;
        }
        const Window& window =
            all[static_cast<std::size_t>(pick(random, static_cast<int>(all.size())))];
        const void* const buffer = reinterpret_cast<void*>(window.address + 256);
        const Side side{buffer, window.size - 256, Compare::kWhere};
        Windows::Lookup look = windows.look(0, side, side);
        if (look.send.window == Place::kOverrun || look.send != look.receive) {
            violations().add("a place is wrong");
        }
        while (!look.counted) { // windows change meanwhile
            look = windows.accept(look, side, side);
        }
        if (pick(random, 4) == 0) {
            windows.pin(look);
        } else if (pick(random, 16) == 0) {
            windows.unpin_all();
        }
        if (windows.covering(window.address, window.size + 1)) {
            violations().add("a window covers more than it has");
        }
        if (windows.digest().uses == 0) {
            violations().add("a use was not counted");
        }
        ++looks_;
        return true;
    }

    void release(Random& random) {
        while (busy_.load() > 0) {
            Device::current = pick(random, kDevices);
            const int before = Device::current;
            if (pick(random, 8) == 0) {
                bank_.release_idle();
            }
            if (Device::current != before) {
                violations().add("another device is current afterwards");
            }
            std::size_t bytes = 0;
            for (const PoolSegment& segment : bank_.segments()) {
                bytes += segment.device == 0 ? segment.size : 0;
                bank_.find(segment.end() - 1);
            }
            if (bytes > kLimit) {
                violations().add("the limit is passed");
            }
            std::this_thread::yield();
        }
    }

    // --- communicators ---

    LiveHandle any_live(Random& random) {
        const std::lock_guard guard(table_mutex_);
        return live_.empty()
                   ? nullptr
                   : live_[static_cast<std::size_t>(pick(random, static_cast<int>(live_.size())))];
    }

    // A new communicator may have the pointer of one that ended. Its plans have another mutex, and
    // two plans at a time would lower each other's fence.
    std::shared_ptr<Communicator> find(const LiveHandle& live) {
        auto found = live ? registrar_.find(live->pointer) : nullptr;
        return found && found == live->communicator ? found : nullptr;
    }

    void create(Random& random) {
        auto live = std::make_shared<Live>();
        {
            const std::lock_guard guard(table_mutex_);
            if (free_pointers_.empty()) {
                return;
            }
            live->pointer = free_pointers_.back();
            free_pointers_.pop_back();
        }
        live->device = pick(random, kDevices);
        live->library = std::make_shared<WindowLibrary>(
            std::make_shared<Library>(live->device, driver_, violations(), nullptr),
            pick(random, 8) != 0);
        Identity identity;
        identity.pointer = live->pointer;
        identity.device = live->device;
        registrar_.add(identity, [&](const Identity&) {
            return std::make_unique<SeenWithWindows>(live->library);
        });
        live->communicator = registrar_.find(live->pointer);
        const std::lock_guard guard(table_mutex_);
        live_.push_back(live);
        ++created_;
    }

    void begin_and_end(Random& random) {
        for (int round = 0; round < rounds_; ++round) {
            for (int i = pick(random, 30); i > 0; --i) {
                std::this_thread::yield();
            }
            if (pick(random, 2) == 0) {
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
                ending_.push_back(ending);
            }
            end(ending, pick(random, 2) == 0);
        }
        --busy_;
    }

    // The watchdog of a job aborts what another thread is just destroying.
    void abort_those_that_end(Random& random) {
        while (busy_.load() > 0) {
            LiveHandle ending;
            {
                const std::lock_guard guard(table_mutex_);
                if (!ending_.empty() && pick(random, 3) == 0) {
                    ending = ending_.back();
                    ending_.pop_back();
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
        if (abort) {
            live->library->local().begin_abort();
            const Registrar::Ending ending = registrar_.kill(live->pointer);
            std::this_thread::yield();
            live->library->abort();
        } else {
            registrar_.retire(live->pointer);
        }
        const std::lock_guard guard(table_mutex_);
        if (--live->enders > 0) {
            return;
        }
        if (!live->library->empty()) {
            violations().add("a destroyed communicator has windows");
        }
        live->library->local().end();
        std::erase(ending_, live);
        free_pointers_.push_back(live->pointer);
    }

    static Violations& violations() { return Device::the().violations; }

    const int rounds_;
    Driver driver_;
    Ring ring_{"", 64}; // full at once
    Bank bank_{ring_};
    Registrar registrar_{ring_, in(bank_)};
    std::array<Allocator, kDevices> allocators_;

    std::mutex table_mutex_; // the three tables below; nothing of the registrar is locked inside it
    std::vector<LiveHandle> live_;
    std::vector<LiveHandle> ending_;
    std::vector<void*> free_pointers_;

    std::atomic<int> busy_{1};
    std::atomic<std::uint64_t> created_{0}, overtaken_{0}, made_{0}, undone_{0}, looks_{0};
};

// When all threads have ended and all communicators with them, nothing has a window, and all memory
// has gone once.
int Job::judge() {
    while (!live_.empty()) {
        const LiveHandle live = live_.back();
        live_.pop_back();
        end(live, false);
    }
    std::size_t wrong = 0;
    for (const PoolSegment& segment : bank_.segments()) {
        wrong += segment.windows != 0;
    }
    wrong += Device::the().windows();
    for (int device = 0; device < kDevices; ++device) {
        for (const auto& block : allocators_[static_cast<std::size_t>(device)].blocks) {
            give_back(device, block);
        }
    }
    bank_.release_idle();
    wrong += bank_.segments().size();
    wrong += Device::the().mapped();
    wrong += Device::the().allocated() != Device::the().released();
    wrong += registrar_.totals().communicators + registrar_.totals().segments;
    const bool good = wrong == 0 && violations().count() == 0 && made_ != 0 && undone_ != 0 &&
                      looks_ != 0 && overtaken_ != 0;
    std::printf("symmetric: %s: %lu segments, %lu communicators (%lu aborts during destroy), %lu "
                "windows asked for, %lu trimmed, %lu looks; %zu wrong, %zu violations\n",
                good ? "ok" : "FAILED", Device::the().allocated(), created_.load(),
                overtaken_.load(), made_.load(), undone_.load(), looks_.load(), wrong,
                violations().count());
    return good ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
    std::signal(SIGALRM, on_alarm);
    alarm(kPatience);
    Job job(rounds);
    job.run();
    return job.judge();
}
