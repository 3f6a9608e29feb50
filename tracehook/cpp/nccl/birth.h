// A communicator that a call is about to make: what is known of it before NCCL fills in the handle.
#pragma once

#include "nccl/abi.h"
#include "registrar/registrar.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

namespace tracehook::nccl {

struct Birth {
    // Where NCCL writes the handle, until has_handle() takes it from there. For a child of another
    // communicator that is when it is made, and the caller keeps it valid until then; for any other
    // it is before the call returns, also in a group, and then the caller's variable may go.
    Comm* out = nullptr;
    std::uint64_t key = 0;
    int device = -1;
    int rank = -1;
    int size = -1;
    bool blocking = true;
    registrar::CommunicatorPtr parent; // of a split or shrink; null too if we do not know it
    bool shares_resources = false;     // with the parent: then they share its gate
    registrar::Local local = registrar::Local::kOurs;
    bool adopted = false;        // it exists already, and its making was not seen
    registrar::Sharing shares{}; // with its own children
    // The ring says that it is being made, as long as this lives.
    std::shared_ptr<events::CallSlot> announced{};
    Comm handle = nullptr;
    Comm made_from = nullptr; // the parent's handle

    // False if NCCL has not written it yet (a non-blocking call in progress). A handle that stays
    // null on success (NCCL_SPLIT_NOCOLOR) is no birth.
    bool has_handle() noexcept {
        if (handle == nullptr && out != nullptr) {
            handle = *out;
        }
        return handle != nullptr;
    }
    // `communicator` is this one, or the one that it is made from. The latter first: if it is that,
    // nobody may have kept `out`.
    bool is_of(Comm communicator) noexcept {
        return made_from == communicator || (has_handle() && handle == communicator);
    }
};

// The fields of a caller's configuration that matter here; defaults where it is null, older, or
// leaves them open.
bool config_blocking(const Config* config) noexcept;
// Without a configuration, a child has its parent's.
registrar::Sharing config_sharing(const Config* config,
                                  const registrar::CommunicatorPtr& parent = nullptr) noexcept;

// Hands the new communicator, which has its handle, to the registrar, which registers every live
// segment.
void deliver(registrar::Registrar& registrar, const Birth& birth);

// Births that are in progress outside of any group. The thread that began one delivers it; any
// thread may end it before. The lock is not held while one is delivered.
class BirthsInProgress {
  public:
    static BirthsInProgress& instance() noexcept;
    // `owner`: what stands for the calling thread.
    void expect(const void* owner, Birth birth);
    // NCCL told the owner of a success: its births that have handles are communicators now.
    void deliver_all(const void* owner, registrar::Registrar& registrar);
    // `communicator` is ending or failed, or what was to be made from it: the caller keeps `out` no
    // longer.
    void drop(Comm communicator) noexcept;
    void drop_all_of(const void* owner) noexcept; // its thread ends

  private:
    struct Expected {
        const void* owner;
        Birth birth;
    };
    template <typename Which> void drop_if(const Which& which) noexcept;

    std::mutex mutex_;
    std::vector<Expected> births_;
    std::atomic<std::size_t> count_{0}; // nearly always 0: then nobody takes the lock
};

// What is known of the host, for communicators that are made from now on: up to how many ranks one
// may have whose ranks share a host (0: the job has several hosts), and whether every segment is
// registered also where only some calls would gain. Alike on all ranks of a job.
void set_host(int most_ranks, bool every_segment) noexcept;

// Called after a communicator was delivered, on the thread that made it, with none of our locks
// held.
using BirthObserver = std::function<void()>;
void set_birth_observer(BirthObserver observer);

} // namespace tracehook::nccl
