#include "lifecycle.h"

#include "calls.h"
#include "group.h"
#include "handles.h"
#include "maker.h"
#include "nccl/key.h"
#include "rehearsal/cuda/device.h"
#include "waiting.h"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

namespace tracehook::rehearsal::nccl {

namespace {

bool is_blocking(const Config* config, bool otherwise) {
    if (config == nullptr || config->size < offsetof(Config, blocking) + sizeof(int) ||
        config->blocking == kConfigUndefined) {
        return otherwise;
    }
    return config->blocking != 0;
}

// What the ranks of a split tell each other.
struct Choice {
    int color;
    int key;
};

// Where a rank stands among those that chose the same colour.
struct Standing {
    int rank = -1;
    int ranks = 0;
};

Standing standing_of(const std::vector<Choice>& choices, int rank) {
    std::vector<std::pair<int, int>> members;
    for (int other = 0; other < static_cast<int>(choices.size()); ++other) {
        if (choices[other].color == choices[rank].color) {
            members.emplace_back(choices[other].key, other);
        }
    }
    std::ranges::sort(members);
    const auto mine = std::ranges::find(members, std::pair(choices[rank].key, rank));
    return {static_cast<int>(mine - members.begin()), static_cast<int>(members.size())};
}

// False if the parent was stopped.
bool exchange_choices(Communicator& parent, std::uint64_t number, Choice mine,
                      std::vector<Choice>& all) {
    Rendezvous& meeting = parent.meeting();
    const WaitScope waiting(
        parent, [&] { return "ncclCommSplit (split " + std::to_string(number) + ")"; },
        [&] { return meeting.behind(Lane::kHost, Mark::kPosted, number); });
    // One group may hold two splits of one communicator, each on a thread of its own.
    if (!meeting.await_passed(Lane::kHost, number - 1)) {
        return false;
    }
    meeting.post(Lane::kHost, number, &mine, sizeof mine);
    if (!meeting.await_posted(Lane::kHost, number)) {
        return false;
    }
    all = meeting.payloads<Choice>(Lane::kHost);
    meeting.pass(Lane::kHost, number);
    return meeting.await_passed(Lane::kHost, number);
}

// Rule C4. Said once: a communicator that is finalizing was asked before. While a graph lives that
// uses windows they have to stay (rule W13), and which of them it uses only the caller knows; so
// they have to while a device communicator lives (rule W19), which NCCL ends here.
void check_registrations(const Entry& entry) {
    Communicator& communicator = *entry.communicator();
    if (communicator.state() == State::kFinalizing) {
        return;
    }
    if (const std::size_t left = communicator.registrations().size(); left != 0) {
        report(Rule::kC4, communicator.subject(), "%s with %zu registration(s) left", entry.call(),
               left);
    }
    if (const std::size_t left = communicator.windows().size();
        left != 0 && !communicator.in_graphs() && communicator.device_communicators() == 0) {
        report(Rule::kC4, communicator.subject(), "%s with %zu window(s) left", entry.call(), left);
    }
}

std::shared_ptr<Communicator> child_of(const Communicator& parent, const Config* config) {
    return std::make_shared<Communicator>(parent.device(), is_blocking(config, parent.blocking()));
}

Result submit_birth(const Entry& entry, const std::shared_ptr<Communicator>& child, Comm* out,
                    std::function<Result()> join, bool has_part) {
    note_maker();
    Job job;
    job.child = has_part ? child : nullptr;
    job.parent = entry.communicator();
    job.out = out;
    job.blocking = child->blocking();
    job.holding = entry.holding();
    job.work = [child, join = std::move(join), has_part](std::shared_ptr<Communicator>& made) {
        const Result result = join();
        made = has_part ? child : nullptr;
        return result;
    };
    return submit(std::move(job));
}

// Of one that is settled, and so only has to join the others.
Result submit_birth(const Entry& entry, const std::shared_ptr<Communicator>& child, Comm* out) {
    const auto join = [child, call = std::string(entry.call())] { return child->join(call); };
    return submit_birth(entry, child, out, join, true);
}

} // namespace

Result create(const Entry& entry, Comm* out, Key key, Name name, int ranks, int rank,
              const Config* config) {
    const std::string call = entry.call();
    if (out == nullptr || ranks < 1 || rank < 0 || rank >= ranks) {
        return failed(kInvalidArgument, call + ": rank " + std::to_string(rank) + " of " +
                                            std::to_string(ranks) + " is not valid");
    }
    const auto child =
        std::make_shared<Communicator>(emu_current_device(), is_blocking(config, true));
    child->settle(key, rank, ranks);
    child->call_it(std::move(name));
    return submit_birth(entry, child, out);
}

Result split(const Entry& entry, int color, int key, Comm* out, const Config* config) {
    const std::shared_ptr<Communicator> parent = entry.communicator();
    if (out == nullptr || (color < 0 && color != kSplitNoColor)) {
        return failed(kInvalidArgument, "ncclCommSplit: color " + std::to_string(color));
    }
    Name name = name_of_child(parent->name(), "split", color, parent->children(), config);
    const std::uint64_t number = parent->next_split();
    const auto child = child_of(*parent, config);
    child->call_it(std::move(name));
    const auto join = [parent, child, number, color, key] {
        std::vector<Choice> choices;
        if (!exchange_choices(*parent, number, {color, key}, choices)) {
            return failed(kInternalError, "ncclCommSplit: aborted while waiting for other ranks");
        }
        if (color == kSplitNoColor) {
            return kSuccess;
        }
        const Standing standing = standing_of(choices, parent->rank());
        child->settle(parent->key().child("split", number, std::to_string(color)), standing.rank,
                      standing.ranks);
        return child->join("ncclCommSplit");
    };
    return submit_birth(entry, child, out, join, color != kSplitNoColor);
}

Result shrink(const Entry& entry, std::vector<int> excluded, Comm* out, const Config* config,
              bool abort_first) {
    const std::shared_ptr<Communicator> parent = entry.communicator();
    std::ranges::sort(excluded);
    const bool sensible = !excluded.empty() && excluded.front() >= 0 &&
                          excluded.back() < parent->ranks() &&
                          std::ranges::adjacent_find(excluded) == excluded.end();
    if (out == nullptr || !sensible || std::ranges::binary_search(excluded, parent->rank())) {
        return failed(kInvalidArgument,
                      "ncclCommShrink: the excluded ranks are not other ranks, each named once");
    }
    if (abort_first) {
        parent->stop();
        parent->become(State::kShrunk);
    }
    std::string names;
    int before = 0;
    std::uint64_t colour = 0;
    for (const int rank : excluded) {
        names += std::to_string(rank) + ",";
        before += rank < parent->rank() ? 1 : 0;
        colour = key_of_child(colour, "without", rank, 0);
    }
    const auto child = child_of(*parent, config);
    child->call_it(name_of_child(parent->name(), "shrink", static_cast<std::int64_t>(colour),
                                 parent->children(), config));
    child->settle(parent->key().child("shrink", parent->next_shrink(), names),
                  parent->rank() - before, parent->ranks() - static_cast<int>(excluded.size()));
    return submit_birth(entry, child, out);
}

Key grow_key(const Communicator& parent) {
    return parent.key().child("grow", parent.grows() + 1, "");
}

Result grow(const Entry& entry, int ranks, Comm* out, const Config* config) {
    const std::shared_ptr<Communicator> parent = entry.communicator();
    if (out == nullptr || ranks <= parent->ranks()) {
        return failed(kInvalidArgument, "ncclCommGrow: " + std::to_string(ranks) +
                                            " ranks are not more than the communicator has");
    }
    const Key key = grow_key(*parent);
    Name name = name_of_child(parent->name(), "grow", ranks, parent->children(), config);
    parent->next_grow();
    const auto child = child_of(*parent, config);
    child->settle(key, parent->rank(), ranks);
    child->call_it(std::move(name));
    return submit_birth(entry, child, out);
}

Result suspend(const Entry& entry) {
    if (entry.communicator()->state() == State::kSuspended) {
        return failed(kInvalidUsage, "ncclCommSuspend: the communicator is suspended already");
    }
    entry.communicator()->wait_idle();
    entry.communicator()->become(State::kSuspended);
    return kSuccess;
}

Result resume(const Entry& entry) {
    if (entry.communicator()->state() != State::kSuspended) {
        return failed(kInvalidUsage, "ncclCommResume: the communicator is not suspended");
    }
    entry.communicator()->become(State::kReady);
    return kSuccess;
}

// An emulated communicator takes no memory of the device: these are numbers that NCCL could say.
Result memory_stat(const Communicator& communicator, int stat, std::uint64_t& value) {
    constexpr std::uint64_t kMiB = 1 << 20;
    const std::uint64_t suspendable = 4 * kMiB * static_cast<std::uint64_t>(communicator.ranks());
    switch (stat) {
    case kMemorySuspendable:
        value = suspendable;
        return kSuccess;
    case kMemorySuspended:
        value = communicator.state() == State::kSuspended ? 1 : 0;
        return kSuccess;
    case kMemoryPersistent:
        value = kMiB;
        return kSuccess;
    case kMemoryTotal:
        value = suspendable + kMiB;
        return kSuccess;
    default:
        return failed(kInvalidArgument,
                      "ncclCommMemStats: there is no statistic " + std::to_string(stat));
    }
}

Result finalize(const Entry& entry) {
    const std::shared_ptr<Communicator> communicator = entry.communicator();
    if (communicator->state() == State::kFinalizing) {
        report(Rule::kC2, communicator->subject(), "ncclCommFinalize called twice");
        return failed(kInvalidArgument, "ncclCommFinalize: called twice");
    }
    check_registrations(entry);
    communicator->become(State::kFinalizing);
    if (communicator->blocking()) {
        communicator->wait_idle();
        communicator->wait_for_graphs(entry.call());
        return kSuccess;
    }
    communicator->begin_background();
    std::thread([communicator] {
        communicator->wait_idle();
        communicator->wait_for_graphs("ncclCommFinalize");
        communicator->end_background();
    }).detach();
    return kInProgress;
}

Result destroy(const Entry& entry) {
    check_registrations(entry);
    entry.communicator()->wait_idle();
    if (entry.communicator()->state() != State::kFinalizing) { // which waited already
        entry.communicator()->wait_for_graphs(entry.call());
    }
    entry.communicator()->wait_stopped();
    entry.communicator()->become(State::kEnded);
    entry.communicator()->windows().end();
    close_handle(*entry.communicator(), entry.call());
    return kSuccess;
}

Result abort_communicator(const Entry& entry) {
    entry.communicator()->stop();
    entry.communicator()->become(State::kEnded);
    entry.communicator()->wait_for_graphs(entry.call());
    entry.communicator()->wait_stopped();
    entry.communicator()->windows().end();
    close_handle(*entry.communicator(), entry.call());
    return kSuccess;
}

Result revoke(const Entry& entry) {
    entry.communicator()->stop();
    entry.communicator()->become(State::kRevoked);
    return kSuccess;
}

} // namespace tracehook::rehearsal::nccl
