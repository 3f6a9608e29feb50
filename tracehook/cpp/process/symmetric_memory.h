// What Python needs to make memory symmetric: a live communicator to register windows with, and a
// scope whose allocations are followed. Both are thin: the rules are those of
// windows/communicator_windows.h, windows/scope_stack.h and torch/pool.h.
#pragma once

#include "registrar/registrar.h"
#include "torch/pool.h"
#include "windows/communicator_windows.h"
#include "windows/pending_blocks.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tracehook::process {

// A communicator, for as long as somebody asks about it; it may be dead. Any thread, without the
// GIL where a call enters the gate (it may wait for NCCL).
class BoundCommunicator {
  public:
    explicit BoundCommunicator(registrar::CommunicatorPtr communicator) noexcept
        : communicator_(std::move(communicator)) {}

    registrar::Communicator& operator*() const noexcept { return *communicator_; }
    registrar::Communicator* operator->() const noexcept { return communicator_.get(); }
    const registrar::CommunicatorPtr& shared() const noexcept { return communicator_; }
    windows::CommunicatorWindows& windows() const noexcept { return windows::of(*communicator_); }
    windows::Windows& table() const noexcept { return windows().table(); }

    bool holds(std::uintptr_t address, std::size_t size) const {
        return table().covering(address, size).has_value();
    }

    // Which of the bank's segments have no window here.
    std::vector<std::uint64_t> missing(const std::vector<std::uint64_t>& segments) const;

    // See windows/communicator_windows.h. Fewer outcomes than segments: it failed, or the
    // communicator died.
    std::vector<registrar::Outcome> register_windows(const std::vector<std::uint64_t>& segments,
                                                     bool capturing = false);
    bool confirm_windows();
    std::size_t drop_windows();
    // Moves the fence of registrations to call `next`, and waits until all calls before it were
    // made and NCCL has taken them in; `own`: flights of this thread, which may go on. False if
    // that takes longer, or the communicator died.
    bool wait_for_calls(std::uint64_t next, std::size_t own,
                        std::chrono::duration<double> patience);
    void undo_window_of_others(std::uintptr_t handle);
    std::size_t deregister_windows(const std::vector<std::uint64_t>& segments);

  private:
    registrar::CommunicatorPtr communicator_;
};

// What is raised where a scope ends out of order. It is over then, like any other that failed.
inline constexpr const char* kWrongEnd = "scopes of symmetric memory must end in the reverse order "
                                         "of their beginning, on the thread that "
                                         "began them. This one did not: it has registered nothing, "
                                         "and is over. Keep `await` and `yield` "
                                         "out of scopes: put them around allocations";

// The memory of one set of groups on one device: eager tensors come from one pool, those of
// captured graphs from another. One object serves all threads, nested.
class PoolScope {
  public:
    PoolScope(std::shared_ptr<torch::Pool> eager, std::shared_ptr<torch::Pool> graph,
              std::uint32_t owner, const torch::HookLibrary& hook_library,
              const windows::PendingBlocks& pending)
        : eager_(std::move(eager)), graph_(std::move(graph)), owner_(owner),
          hook_library_(hook_library), pending_(pending) {}

    // One for each group of the scope, none where it is not known yet: on other ranks it may be.
    using Communicators = std::vector<std::optional<BoundCommunicator>>;

    // When some are known, and whenever one was replaced. With the GIL.
    void set_communicators(Communicators communicators);

    // enter() and leave() wait for the allocator's lock: without the GIL. enter() also waits for
    // streams that use pending memory of the pools (torch/settling.h), and returns false where it
    // gave that up. leave() returns the segments that were touched.
    bool enter(bool graph);
    std::vector<std::uint64_t> leave();
    // With the GIL, which keeps set_communicators() away: those of them that lack a window on one
    // of the communicators; and that this is an end of the scope, before leave().
    std::vector<std::uint64_t> without_window(const std::vector<std::uint64_t>& touched) const;
    void count_end();
    // With the GIL. How many scopes have ended since the last call on the communicator with this
    // index (windows.h): all of them count, since a hint must not decide which do. While it is not
    // known, how often this one has. kUnknown if several threads were in the scope, whose ends have
    // no order.
    static constexpr std::int64_t kUnknown = -1;
    std::int64_t ends(std::size_t index) const;

    int device() const noexcept { return eager_->device(); }

  private:
    std::int64_t ends_ = 0;
    std::uint64_t thread_ = 0; // that ends the scope
    bool several_threads_ = false;
    const std::shared_ptr<torch::Pool> eager_;
    const std::shared_ptr<torch::Pool> graph_;
    const std::uint32_t owner_;
    const torch::HookLibrary& hook_library_;
    const windows::PendingBlocks& pending_; // lives as long as the process
    Communicators communicators_;
};

} // namespace tracehook::process
