// The one tracehook of a process: ring, registrar, hook library and interposer, wired together.
//
// Never destroyed: allocator callbacks and NCCL's threads may still come while the interpreter
// exits, and must find it. Nothing is done at exit. A forked child abandons it (its locks may be
// held by threads that do not exist there) and may make a new one, as long as the parent had not
// attached to the allocator.
#pragma once

#include "events/ring.h"
#include "registrar/registrar.h"
#include "torch/hook_library.h"
#include "torch/segment_source.h"
#include "windows/bank.h"
#include "windows/pending_blocks.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tracehook::process {

// Why the hook cannot follow the allocator, or stands aside. The numbers stand in the ring
// (hook.unsupported and hook.conflict); those that this side does not give come from Python.
enum class Reason : std::uint8_t {
    kNone = 0,
#define REASON(enumerator, ...) enumerator,
#include "events/reasons.def"
#undef REASON
};

class Process {
  public:
    // The current one; null before the first make().
    static Process* current() noexcept;
    // Makes the process's tracehook, or the forked child's own. Throws std::logic_error if one is
    // alive here.
    static Process& make(const std::string& ring_path, std::size_t ring_capacity);

    events::Ring& ring() noexcept { return ring_; }
    registrar::Registrar& registrar() noexcept { return registrar_; }
    windows::Bank& bank() noexcept { return bank_; }
    const windows::PendingBlocks& pending_blocks() const noexcept { return pending_blocks_; }
    // Needs attach() before.
    const torch::HookLibrary& hook_library() const;

    // Idempotent. Throws std::runtime_error with one line. Returns the names of the interposed
    // calls.
    std::vector<std::string> interpose();

    // Idempotent. Loads the hook library, attaches the tracker (if the allocator can be followed)
    // and adopts what exists. CUDA must be up. Takes the allocator's locks, so the caller holds
    // none of ours and not the GIL. Throws std::runtime_error; nothing is registered from then on.
    Reason attach(const std::string& library_path, const std::string& torch_version);
    bool attached() const noexcept { return attached_.load(std::memory_order_acquire); }

    // Stays off where attach() failed half-way.
    void set_registering(bool on);

    th_allocator_info describe_allocator() const; // needs attach() before
    std::string hook_library_version() const;

    // Compares the ledger with the allocator's snapshot and logs ledger.check and each
    // ledger.difference. Returns the number of differences, or nothing if segments came and went
    // too fast to compare.
    std::optional<std::size_t> check() noexcept;
    // From now on, after every communicator's birth.
    void check_at_births();

    // A communicator whose creation was not seen. `key` is made from `name`, which all its ranks
    // share; `registers_itself`: somebody else does what we would do. False if known.
    bool adopt_communicator(void* pointer, int device, const std::string& name,
                            bool registers_itself);

  private:
    Process(const std::string& ring_path, std::size_t ring_capacity);

    static void on_segment(void* user, const th_segment_event* event);
    registrar::PoolKind pool_of(const th_segment_event& event) const noexcept;
    void on_free(const th_segment_event& event) noexcept;
    bool adopt(const std::vector<th_segment_event>& segments); // whether some are expandable
    std::vector<th_segment_event> repeated_snapshot() const;
    void stand_aside();

    events::Ring ring_;
    windows::Bank bank_;
    windows::PendingBlocks pending_blocks_{bank_};
    torch::SourcedMemory memory_;
    registrar::Registrar registrar_;
    std::mutex attach_mutex_; // one attach() at a time; taken with no other lock of ours held
    std::unique_ptr<torch::HookLibrary> hook_library_;
    std::atomic<bool> attached_{false};
    std::atomic<bool> stands_aside_{false}; // a tracker is attached that tells nobody
    std::atomic<bool> expandable_seen_{false};
};

} // namespace tracehook::process
