// Compares, before an operation goes to NCCL, where its buffers lie: with what was agreed on
// before, or, at the first use, with the other ranks.
#pragma once

#include "nccl/abi.h"
#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <functional>
#include <string>

namespace tracehook::nccl {

// A row of the table of operations; see calls.def.
struct Operation {
    enum class Size { one, all };

    const char* name;
    Size send;
    Size receive;
    windows::Compare compare_send;
    windows::Compare compare_receive;
};

// By number: the order of the PLACED rows.
const std::vector<Operation>& operations();

// What compares a new use with the other ranks, on the thread that issued the call, with none of
// our locks and not inside the gate. It waits for them, with a deadline. Returns "" if all agree,
// or why the call must not be made.
using Comparison =
    std::function<std::string(registrar::Communicator&, const windows::Windows::Lookup&)>;

// Before the first window is made. Empty: nothing is compared.
void set_verification(Comparison comparison);

// Sees to it that the ranks can compare a call with a configuration, which needs no window: may set
// the verification. Called where a comparison is.
using Introduction = std::function<void(const registrar::CommunicatorPtr&)>;
void set_introduction(Introduction introduction);

// Notes why this thread's call does not go to NCCL; returns what the caller hears.
int refuse(std::string why) noexcept;

// kInvalidUsage if no call may go to NCCL on this communicator any more, else kSuccess.
int check_refusal(const registrar::Communicator& communicator) noexcept;

// What a program asks NCCL for.
struct Call {
    std::uint32_t operation; // its row
    const void* send;
    const void* receive;
    std::size_t count;
    int type;
    Stream stream;
    bool in_group;            // the thread has an open group with a call of this communicator
    std::uint32_t config = 0; // see coll_config.h
    int reduction = -1;       // ncclRedOp_t; -1: it has none
    int root = -1;            // -1: it has none
};

// What check_placement() found out.
struct Checked {
    registrar::CommunicatorPtr
        kept;               // if the ranks compared something: then `communicator` may be another
    std::uint64_t kind = 0; // of the call, as far as it says where the buffers lie and whether
                            // the stream is captured: bits of events/tally.h
};

// kSuccess, or what to return to the caller instead of calling NCCL. `communicator` is engaged: see
// windows/windows.h. After kSuccess the call is in flight, and lands in the gate.
int check_placement(const registrar::CommunicatorPtr& communicator, const Call& call,
                    Checked& checked) noexcept;

// What this thread was last refused for, once; null if it was not. Valid until its next call.
const char* take_refusal() noexcept;

} // namespace tracehook::nccl
