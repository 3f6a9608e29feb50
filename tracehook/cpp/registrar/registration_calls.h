// What the registrar needs of a communicator: who it is, and the calls that register a range with
// it.
#pragma once

#include "registrar/segment.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace tracehook::registrar {

// Who registers segments with a communicator.
enum class Local : std::uint8_t {
#define LOCAL_KIND(enumerator, ...) enumerator,
#include "events/local_kinds.def"
#undef LOCAL_KIND
};

// When a segment is registered with a communicator. Every rank of it has the same answer.
enum class When : std::uint8_t {
    kAtBirth, // when the segment is born, at its own address
    kAtCalls, // at the first call that gains by it, at its alias (registrar/aliases.h)
};

// What a registration can do for the library.
enum class Effect : std::uint8_t {
#define EFFECT(enumerator, ...) enumerator,
#include "events/effects.def"
#undef EFFECT
};

// Which children of a communicator use its resources in the library, and so its gate.
struct Sharing {
    bool splits = false;
    bool shrinks = false;
};

struct Identity {
    std::uint32_t id =
        0; // process-local, never reused; given by the registrar (a pointer is reused)
    std::uint64_t key = 0;   // equal on all ranks of the communicator
    void* pointer = nullptr; // the raw handle (ncclComm_t)
    int device = -1;
    int rank = -1; // in the communicator
    int size = -1; // ranks in the communicator
    Local local = Local::kOurs;
    When when = When::kAtBirth;
    bool one_host = false;    // all its ranks are taken to share a host
    bool adopted = false;     // its making was not seen
    std::uint16_t spared = 0; // by which rules (segment_rules.h); given by the registrar
    Sharing shares;
};

struct Outcome {
    int result = 0; // 0, or the backend's error number
    void* handle =
        nullptr; // null with result 0: accepted but without effect (NCCL_LOCAL_REGISTER=0, for one)
};

// GPU memory that the library itself holds for a communicator, in bytes.
struct LibraryMemory {
    std::uint64_t suspendable = 0; // it goes while the communicator is suspended
    std::uint64_t persistent = 0;
};

// In `result` of register_window(): a non-blocking communicator goes on with it in the background.
inline constexpr int kUnderWay = std::numeric_limits<int>::min();

// One per live communicator. The register / deregister calls are only made by the thread that is
// inside the communicator's Gate, one at a time, and never after the communicator died. They must
// not throw, take the GIL, allocate device memory or call the allocator. The library may leave
// another current device behind; see restore_device().
class RegistrationCalls {
  public:
    virtual ~RegistrationCalls() = default;

    virtual Outcome register_range(std::uintptr_t address, std::size_t size) noexcept = 0;
    virtual int deregister(void* handle) noexcept = 0;

    // What a registration of such memory can do. Makes no call: any thread.
    virtual Effect expected(MemoryKind /*memory*/) const noexcept { return Effect::kUnknown; }
    // What the library has done with a registration up to now: bits of its own, 0 if nothing.
    // Nothing is returned if this version of it does not tell.
    virtual std::optional<std::uint32_t> uses(void* /*handle*/) noexcept { return std::nullopt; }

    // A collective act of all ranks, which waits for them without a deadline: only kill() ends it.
    // Null with result 0: this communicator has no symmetric memory.
    virtual Outcome register_window(std::uintptr_t address, std::size_t size) noexcept = 0;
    // What has become of it; `begun` is what register_window() returned. This call is local and
    // stands between Gate::begin_calls() and end_calls(). kUnderWay: to be asked again. A handle
    // that is no window's becomes null.
    virtual Outcome finish_window(const Outcome& begun, std::uintptr_t /*address*/,
                                  std::size_t /*size*/) noexcept {
        return begun;
    }
    // This rank's own act. Nothing on the device may use the window any more.
    virtual int deregister_window(void* handle) noexcept = 0;
    // Waits until the device's work is done, and leaves captures alone. No call into the
    // communicator: any thread, also after its death.
    virtual void synchronize() noexcept = 0;

    // Around each run of such calls, on the thread that makes them: remembers the current device,
    // and restores it.
    virtual int remember_device() noexcept = 0;
    virtual void restore_device(int device) noexcept = 0;

    // Nothing is returned if this version of the library does not tell. Local; between
    // Gate::begin_calls() and end_calls(), of a communicator that is ready.
    virtual std::optional<LibraryMemory> memory() noexcept { return std::nullopt; }

    // False while the library still works on an earlier call in the background (a non-blocking
    // communicator).
    virtual bool ready() noexcept = 0;
};

} // namespace tracehook::registrar
