#include "entry.h"

#include "calls.h"
#include "handles.h"

#include <thread>

#include <string_view>

namespace tracehook::rehearsal::nccl {

namespace {

bool allowed(State state, Access access) {
    switch (access) {
    case Access::kAny:
        return true;
    case Access::kQuery:
    case Access::kEnd:
        return state != State::kInitialising;
    case Access::kChild:
        return state == State::kReady || state == State::kRevoked || state == State::kShrunk;
    case Access::kBooks:
        return state == State::kReady || state == State::kSuspended || state == State::kShrunk;
    case Access::kUse:
        break;
    }
    return state == State::kReady;
}

} // namespace

Entry::Entry(const char* call) : call_(call), fault_(emu_fault_of(call)) {
    count_call(call);
    result_ = suffer();
}

Entry::Entry(const char* call, Comm handle, Access access)
    : call_(call), fault_(emu_fault_of(call)) {
    count_call(call);
    result_ = admit(handle, access);
    if (result_ == kSuccess) {
        result_ = suffer();
    }
}

Entry::~Entry() {
    if (inside_) {
        communicator_->leave();
    }
}

Result Entry::admit(Comm handle, Access access) {
    const Found found = find_handle(handle);
    if (found.ended_by != nullptr) {
        report(Rule::kC5, {found.rank, handle, found.key}, "%s after %s", call_, found.ended_by);
        return failed(kInvalidArgument,
                      std::string(call_) + ": the communicator was ended by " + found.ended_by);
    }
    if (found.communicator == nullptr) {
        return failed(kInvalidArgument, std::string(call_) + ": not a communicator");
    }
    communicator_ = found.communicator;
    if (access == Access::kUse || access == Access::kBooks || access == Access::kEnd ||
        access == Access::kChild) {
        inside_ = communicator_->enter(call_);
    }
    return check_state(access);
}

Result Entry::check_state(Access access) const {
    const State state = communicator_->state();
    const bool busy =
        communicator_->in_progress() && access != Access::kAny && access != Access::kQuery;
    if (!allowed(state, access) || (busy && state != State::kFinalizing)) {
        report(Rule::kC2, communicator_->subject(), "%s while it is %s", call_,
               state == State::kReady ? "in progress" : state_name(state));
        return failed(kInvalidArgument, std::string(call_) + ": the communicator is not ready");
    }
    const Result error = communicator_->async_result();
    if (access == Access::kUse && error != kSuccess) {
        return failed(error, std::string(call_) +
                                 ": the communicator failed: " + communicator_->async_text());
    }
    return kSuccess;
}

Result Entry::suffer() {
    std::this_thread::sleep_for(std::chrono::microseconds(fault_.delay_us));
    if (fault_.result != kSuccess && communicator_ != nullptr &&
        std::string_view(call_) == "ncclCommWindowRegister") {
        note_failed_window(communicator_->subject(),
                           std::string(call_) + " failed on rank " +
                               std::to_string(communicator_->rank()) +
                               " of its communicator, a fault that was played");
    }
    return fault_.result == kSuccess ? kSuccess
                                     : failed(static_cast<Result>(fault_.result),
                                              std::string(call_) + ": injected fault");
}

} // namespace tracehook::rehearsal::nccl
