// What the scripted interleavings share: a place where a thread stops, and a library, a driver and
// a world that have such places.
#pragma once

#include "nccl/api.h"
#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <latch>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <unistd.h>

// nccl/*.cpp asks the real library for nothing here; what it may call on the way answers at once.
// Not inline: one file of a program includes this, the others need it.
namespace tracehook::nccl {

inline std::atomic<bool> pretend_capture{false};
inline std::atomic<bool> window_under_way{false}; // a non-blocking registration that does not end
inline std::atomic<int> window_polls{0};
inline std::atomic<Window*> window_place{nullptr}; // where it will be written

const Api& api() {
    static const Api stub = [] {
        Api made;
        made.cudaGetDevice = [](int* device) { return *device = 0; };
        made.cudaSetDevice = [](int) { return 0; };
        made.ncclCommWindowRegister = [](Comm, void*, std::size_t, Window* place, int) {
            window_place = place;
            window_under_way = true;
            return static_cast<int>(kInProgress);
        };
        made.ncclCommGetAsyncError = [](Comm, int* state) {
            window_polls += window_under_way ? 1 : 0;
            *state = window_under_way ? kInProgress : kSuccess;
            return static_cast<int>(kSuccess);
        };
        return made;
    }();
    return stub;
}

int version() noexcept {
    return 0;
}
int current_device() noexcept {
    return 0;
}
bool capturing(Stream) noexcept {
    return pretend_capture.load();
}

} // namespace tracehook::nccl

namespace scripted {

using namespace tracehook;

inline int failures = 0;

inline void expect(bool good, std::string_view sentence) {
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

// The next call stops here.
using Place = std::atomic<Stop*>;

inline void pass(Place& place) {
    if (Stop* stop = place.exchange(nullptr)) {
        stop->pass();
    }
}

template <typename Condition> void until(Condition condition) {
    while (!condition()) { // the alarm of watch() ends it
        std::this_thread::yield();
    }
}

struct Library {
    std::atomic<bool> ready{true};
    std::atomic<int> registered{0};
    std::atomic<int> deregistered{0};
    std::atomic<int> windows_made{0};
    std::atomic<int> windows_undone{0};
    std::atomic<int> synchronized{0};
    std::atomic<int> window_result{0};     // of the next registrations of windows
    std::atomic<int> deregister_result{0}; // of the next deregistrations
    Place in_ready{nullptr};
    Place in_register{nullptr};
    Place in_deregister{nullptr};
    Place in_window{nullptr};
    Place in_window_undone{nullptr};
};

class Scripted final : public registrar::RegistrationCalls {
  public:
    explicit Scripted(Library& library) : library_(library) {}
    registrar::Outcome register_range(std::uintptr_t address, std::size_t) noexcept override {
        ++library_.registered;
        pass(library_.in_register);
        return {0, reinterpret_cast<void*>(address)};
    }
    int deregister(void*) noexcept override {
        pass(library_.in_deregister);
        ++library_.deregistered;
        return library_.deregister_result.load();
    }
    registrar::Outcome register_window(std::uintptr_t address, std::size_t) noexcept override {
        ++library_.windows_made;
        pass(library_.in_window);
        const int result = library_.window_result.load();
        return {result, result == 0 ? reinterpret_cast<void*>(address) : nullptr};
    }
    int deregister_window(void*) noexcept override {
        pass(library_.in_window_undone);
        ++library_.windows_undone;
        return 0;
    }
    void synchronize() noexcept override { ++library_.synchronized; }
    int remember_device() noexcept override { return 0; }
    void restore_device(int) noexcept override {}
    bool ready() noexcept override {
        pass(library_.in_ready);
        return library_.ready.load();
    }

  private:
    Library& library_;
};

// The memory behind the bank. Its functions get no pointer to it, so there is one.
struct Driver {
    std::mutex mutex; // live
    std::map<void*, std::size_t> live;
    std::uintptr_t next = 0x100000;
    std::atomic<int> synchronized{0};
    Place in_allocate{nullptr};
    Place in_synchronize{nullptr};

    static Driver& the() {
        static Driver driver;
        return driver;
    }
    bool mapped(void* memory) {
        const std::lock_guard guard(mutex);
        return live.contains(memory);
    }
    static windows::Memory memory() {
        return {[](std::size_t size) -> void* {
                    Driver& self = the();
                    pass(self.in_allocate);
                    const std::lock_guard guard(self.mutex);
                    void* const made = reinterpret_cast<void*>(self.next);
                    self.next += size;
                    self.live[made] = size;
                    return made;
                },
                [](void* memory) {
                    const std::lock_guard guard(the().mutex);
                    return the().live.erase(memory) == 1 ? 0 : 1;
                },
                [] {
                    pass(the().in_synchronize);
                    ++the().synchronized;
                },
                [](int) { return 0; }};
    }
};

// Keeps what is freed while a communicator is busy, where a case says so.
class Keeper final : public registrar::SegmentMemory {
  public:
    registrar::MemoryKind kind_of(std::uintptr_t) noexcept override {
        return registrar::MemoryKind::kShareable;
    }
    std::uintptr_t map_again(const registrar::Segment&) noexcept override { return 0; }
    void unmap(const registrar::Segment&, std::uintptr_t, bool) noexcept override {}
    bool can_keep(const registrar::Segment&) noexcept override { return keeps; }
    void keep(const registrar::Segment&) noexcept override { ++kept; }
    void let_go(const registrar::Segment&) noexcept override {
        pass(in_let_go);
        ++let_gone;
    }
    bool free_idle(int) noexcept override {
        if (freeing.exchange(true)) {
            return true;
        }
        pass(in_free_idle);
        ++idle_freed;
        freeing = false;
        return false;
    }

    std::atomic<bool> keeps{false};
    std::atomic<int> kept{0};
    std::atomic<int> let_gone{0};
    std::atomic<int> idle_freed{0};
    std::atomic<bool> freeing{false};
    Place in_let_go{nullptr};
    Place in_free_idle{nullptr};
};

inline registrar::Patience impatient() {
    registrar::Patience patience;
    patience.free_for_call = patience.room_for_call = std::chrono::milliseconds(10);
    patience.undoing_for_ready = std::chrono::milliseconds(10);
    return patience;
}

struct World {
    events::Ring ring{"", 1024};
    windows::Bank bank{ring};
    Keeper keeper;
    registrar::Registrar registrar;

    explicit World(const registrar::Patience& patience = {})
        : registrar(ring, windows::in(bank), patience, &keeper) {}

    ~World() {
        for (const auto& communicator : registrar.communicators()) {
            registrar.kill(communicator->identity().pointer);
        }
        registrar.find(nullptr); // this thread's last find() must not outlive the bank
    }

    registrar::CommunicatorPtr create(std::uintptr_t pointer, Library& library,
                                      const registrar::CommunicatorPtr& parent = nullptr) {
        registrar::Identity identity;
        identity.pointer = pointer_of(pointer);
        identity.device = 0;
        identity.size = 2;
        return registrar.add(
            identity,
            [&](const registrar::Identity&) { return std::make_unique<Scripted>(library); },
            parent);
    }
    void allocate(std::uintptr_t address) { registrar.segment_allocated(0, address, 4096); }
    void free(std::uintptr_t address) { registrar.segment_freed(0, address, 4096); }
    void kill(std::uintptr_t pointer) { registrar.kill(pointer_of(pointer)); }
    void retire(std::uintptr_t pointer) { registrar.retire(pointer_of(pointer)); }

    static void* pointer_of(std::uintptr_t pointer) { return reinterpret_cast<void*>(pointer); }
};

inline void on_alarm(int) {
    constexpr char kText[] = "cases: hangs in the case after the last line\n";
    static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
    _exit(100);
}

inline void watch(unsigned seconds) {
    std::signal(SIGALRM, on_alarm);
    alarm(seconds);
}

} // namespace scripted
