// A registrar with scripted communicators, for tests: no torch, no CUDA, no NCCL.
//
// Tests drive it from Python (tests/unit) and C++ (tests/cpp) with the calls that the sources would
// make, and read back every call that reached a communicator.
#pragma once

#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tracehook::testing {

struct ScriptedCall {
    std::uintptr_t communicator;
    bool is_register;
    std::uintptr_t address;
    std::size_t size;
    int result;
};

// What the scripted communicators share: the calls made so far, and the faults to play.
struct Script {
    std::mutex mutex;
    std::vector<ScriptedCall> calls;
    std::map<std::uintptr_t, int> fail_after; // communicator -> register calls that still succeed
    std::map<std::uintptr_t, bool> in_progress;
    std::atomic<int> delay_us{0};
    std::atomic<std::uint64_t> violations{
        0}; // two threads inside one communicator, a call after its end, a bad handle, a range
            // that is registered and gone
};

class Harness {
  public:
    // `patience_ms`: everything that does not wait for as long as it takes waits so long; 0: as in
    // a job.
    explicit Harness(std::size_t ring_capacity, int patience_ms = 0);

    registrar::Registrar& registrar() noexcept { return registrar_; }
    events::Ring& ring() noexcept { return ring_; }
    windows::Bank& bank() noexcept { return bank_; }
    Script& script() noexcept { return *script_; }

    // The allocator's events. That a communicator still holds a range which is gone is a violation.
    void allocate(int device, std::uintptr_t address, std::size_t size,
                  registrar::PoolKind pool = registrar::PoolKind::kDefault);
    void free(int device, std::uintptr_t address, std::size_t size);

    // Makes a communicator behind `pointer` (any number that is not 0) on `device`.
    void create(std::uintptr_t pointer, int device, std::uintptr_t parent, bool observed = false);
    // A collective call: inside the gate for `hold_us` microseconds. False if the communicator is
    // dead or unknown.
    bool collective(std::uintptr_t pointer, int hold_us);
    // A call that stays inside the gate until leave(). False if the communicator is dead or
    // unknown.
    bool enter(std::uintptr_t pointer);
    void leave(std::uintptr_t pointer);
    // A registration of others: whether it came through the gate, or went past it.
    bool by_others(std::uintptr_t pointer);
    void retire(std::uintptr_t pointer);
    void kill(std::uintptr_t pointer);

    // Opens the bank over pretended memory; `limit` in bytes per device, 0: none.
    void open_bank(std::size_t limit);
    // From now on the pretended devices of this process have memory, or none.
    static void set_out_of_memory(bool on) noexcept;
    // Whether this address was given out and not released since.
    static bool mapped(std::uintptr_t address);

    // Looks the places of a collective up, as the interposer does before it lets a call through.
    struct Buffers {
        std::array<std::uintptr_t, 2> address; // send, receive
        std::array<std::size_t, 2> size;
        std::array<windows::Compare, 2> compare;

        windows::Side side(std::size_t which) const;
    };
    static windows::Windows::Lookup look(registrar::Communicator& communicator,
                                         std::uint32_t operation, const Buffers& buffers,
                                         windows::Windows::Act act);
    static void accept(registrar::Communicator& communicator, const windows::Windows::Lookup& look,
                       const Buffers& buffers);

    // Ranges held on the library's side of a communicator, by ascending address; empty after its
    // end.
    std::vector<std::pair<std::uintptr_t, std::size_t>> held(std::uintptr_t pointer);

  private:
    class ScriptedRegistrationCalls;

    void end(std::uintptr_t pointer, bool known);
    // `is` tells whether a range is gone.
    template <typename Is> void check_gone(int device, Is&& is);

    std::shared_ptr<Script> script_ = std::make_shared<Script>();
    events::Ring ring_;
    windows::Bank bank_{ring_};
    registrar::Registrar registrar_;
    std::mutex live_mutex_; // live_, inside_
    std::map<std::uintptr_t, registrar::CommunicatorPtr> inside_;
    std::map<std::uintptr_t, ScriptedRegistrationCalls*> live_;
};

} // namespace tracehook::testing
