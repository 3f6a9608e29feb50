#include "nccl/placement.h"

#include "events/of_thread.h"
#include "nccl/api.h"
#include "nccl/graphs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

namespace tracehook::nccl {

namespace {

using enum windows::Compare;
using enum Operation::Size;

// Leaked at each change: another thread may be using the former one.
std::atomic<const Comparison*> verification{nullptr};

std::atomic<const Introduction*> introduction{nullptr};

struct Refusal {
    std::string why;
    std::string given; // to who asked last
};

Refusal& refusal() {
    return events::OfThread<Refusal>::mine();
}

constexpr const char* kSuspendedText =
    "tracehook: this communicator is suspended (ncclCommSuspend), and NCCL has given its memory "
    "back: let all its ranks resume it (ncclCommResume, or tracehook.resume) before they use it";

// Several ranks in one process, or a communicator that was found: then NCCL has to say how many
// there are.
int ranks_of(const registrar::Communicator& communicator) noexcept {
    int ranks = communicator.identity().size;
    if (ranks <= 0) {
        api().ncclCommCount(communicator.identity().pointer, &ranks);
    }
    return std::max(ranks, 1);
}

bool is_inside(const windows::Place& place) noexcept {
    return place.window != windows::Place::kNone && place.window != windows::Place::kOverrun;
}

int compare_with_others(const registrar::CommunicatorPtr& communicator,
                        const windows::Windows::Lookup& look) noexcept {
    try {
        const Introduction* const introduce = introduction.load(std::memory_order_acquire);
        if (look.use.config != 0 && introduce != nullptr) {
            (*introduce)(communicator);
        }
        const Comparison* const compare = verification.load(std::memory_order_acquire);
        if (compare == nullptr || !*compare) {
            return kSuccess;
        }
        const std::string why = (*compare)(*communicator, look);
        return why.empty() ? kSuccess : refuse(why);
    } catch (const std::exception& failure) {
        return refuse(failure.what());
    }
}

} // namespace

int refuse(std::string why) noexcept {
    refusal().why = std::move(why);
    return kInvalidUsage;
}

const std::vector<Operation>& operations() {
    static const auto* const table = new std::vector<Operation>{
#define GUARDED(...)
#define LIFECYCLE(...)
#define PLACED(name, position, operation, send, receive, by_send, by_receive, ...)                 \
    {operation, send, receive, by_send, by_receive},
#include "nccl/calls.def"
#undef GUARDED
#undef LIFECYCLE
#undef PLACED
    };
    return *table;
}

void set_verification(Comparison comparison) {
    verification.store(new Comparison(std::move(comparison)), std::memory_order_release);
}

void set_introduction(Introduction replacement) {
    introduction.store(new Introduction(std::move(replacement)), std::memory_order_release);
}

int check_refusal(const registrar::Communicator& communicator) noexcept {
    if (communicator.rests()) {
        return refuse(kSuspendedText);
    }
    const std::string* const why = communicator.refusal();
    return why == nullptr ? kSuccess : refuse(*why);
}

int check_placement(const registrar::CommunicatorPtr& found, const Call& call,
                    Checked& checked) noexcept {
    registrar::CommunicatorPtr& kept = checked.kept;
    const Operation& row = operations()[call.operation];
    const std::size_t one_size = bytes_of(call.count, call.type);
    const std::size_t all_size = bytes_of(call.count, call.type, ranks_of(*found));
    windows::Windows& windows = windows::table_of(*found);
    const windows::Side from{call.send, row.send == all ? all_size : one_size, row.compare_send};
    const windows::Side to{call.receive, row.receive == all ? all_size : one_size,
                           row.compare_receive};
    windows::Windows::Lookup look = windows.look(
        call.operation, from, to, windows::Windows::Act::kKnown, call.in_group, call.config);
    if (look.milestone) {
        windows::of(*found).log_digest();
    }
    if (!look.counted && !look.refused) {
        kept = found;
    }
    while (!look.counted && !look.refused) {
        if (!look.known) {
            windows::of(*kept).log_first_use(look);
        }
        look.bytes = one_size;
        look.type = call.type;
        look.reduction = call.reduction;
        look.root = call.root;
        if (const int result = compare_with_others(kept, look); result != kSuccess) {
            windows.withdraw();
            return result;
        }
        // The ranks may have dropped their windows together, or made others.
        look = windows.accept(look, from, to, call.in_group);
    }
    const registrar::Communicator& communicator = kept ? *kept : *found;
    if (look.refused) {
        return check_refusal(communicator);
    }
    const bool is_captured = capturing(call.stream);
    checked.kind = (is_inside(look.send) ? events::Tally::kSends : 0) |
                   (is_inside(look.receive) ? events::Tally::kReceives : 0) |
                   (is_captured ? events::Tally::kCaptured : 0);
    if (look.in_window && is_captured) {
        windows.pin(look);
        if (ranks_of(communicator) > 1) { // else NCCL only copies, and waits for no graph
            follow_graph(windows::of(communicator).graphs(), call.stream);
        }
    }
    return kSuccess;
}

const char* take_refusal() noexcept {
    std::string& given = refusal().given;
    given = std::exchange(refusal().why, {});
    return given.empty() ? nullptr : given.c_str();
}

} // namespace tracehook::nccl
