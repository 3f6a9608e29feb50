// A communicator that a call is about to make: what is known of it before NCCL fills in the handle.
#pragma once

#include "nccl/abi.h"
#include "registrar/registrar.h"

#include <functional>

namespace tracehook::nccl {

struct Birth {
    Comm* out = nullptr; // where NCCL writes the handle; the caller keeps it valid until NCCL has
    std::uint64_t key = 0;
    int device = -1;
    int rank = -1;
    int size = -1;
    bool blocking = true;
    registrar::CommunicatorPtr parent; // of a split or shrink
    bool shares_resources = false;     // with the parent: then they share its gate
    registrar::Local local = registrar::Local::kOurs;
    bool adopted = false;        // it exists already, and its making was not seen
    registrar::Sharing shares{}; // with its own children
    // The ring says that it is being made, as long as this lives.
    std::shared_ptr<events::CallSlot> announced{};
};

// The fields of a caller's configuration that matter here; defaults where it is null, older, or
// leaves them open.
bool config_blocking(const Config* config) noexcept;
// Without a configuration, a child has its parent's.
registrar::Sharing config_sharing(const Config* config,
                                  const registrar::CommunicatorPtr& parent = nullptr) noexcept;

// Hands the new communicator to the registrar, which registers every live segment. False if NCCL
// has not written the handle yet (a non-blocking call in progress). A handle that stays null on
// success (NCCL_SPLIT_NOCOLOR) is no birth.
bool deliver(registrar::Registrar& registrar, const Birth& birth);

// What is known of the host, for communicators that are made from now on: up to how many ranks one
// may have whose ranks share a host (0: the job has several hosts), and whether every segment is
// registered also where only some calls would gain. Alike on all ranks of a job.
void set_host(int most_ranks, bool every_segment) noexcept;

// Called after a communicator was delivered, on the thread that made it, with none of our locks
// held.
using BirthObserver = std::function<void()>;
void set_birth_observer(BirthObserver observer);

} // namespace tracehook::nccl
