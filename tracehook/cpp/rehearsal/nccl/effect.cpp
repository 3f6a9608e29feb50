#include "effect.h"

#include "calls.h"
#include "rehearsal/cuda/device.h"
#include "settings.h"
#include "symmetric.h"

#include <algorithm>
#include <string>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {

namespace {

// From these sizes on NCCL chooses the protocol that can use a registration, as measured on two
// H100s.
constexpr std::size_t kLeastGathered = 2U << 20;
constexpr std::size_t kLeastSent = 1U << 20;

constexpr int kFirstOfSeveralHandles = 22900;      // a buffer may lie on several handles
constexpr int kFirstForBoth = 22900;               // a record may serve messages and collectives
constexpr int kFirstWithReceiveBufferOnly = 22900; // the send buffer needs no record

enum class Outcome { kNone, kInEffect, kCudaMalloc, kNotExportable };

struct Buffer {
    const void* pointer;
    std::size_t size;
    bool registered;

    std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(pointer); }
    std::uintptr_t end() const { return begin() + size; }
};

bool gathers(Kind kind) {
    return kind == Kind::kAllGather || kind == Kind::kBroadcast;
}

// NCCL makes messages of these.
bool exchanges(Kind kind) {
    return kind == Kind::kAllToAll || kind == Kind::kGather || kind == Kind::kScatter;
}

bool reaches(const Communicator& communicator, int rank) {
    const Rendezvous::Member member = communicator.meeting().member(rank);
    return member.process != getpid() && member.machine == settings().machine;
}

// A ring that leaves the host, or that has two ranks in one process, maps nothing.
bool reaches_all(const Communicator& communicator) {
    for (int rank = 0; rank < communicator.ranks(); ++rank) {
        if (rank != communicator.rank() && !reaches(communicator, rank)) {
            return false;
        }
    }
    return communicator.ranks() > 1;
}

bool may_count(const Communicator& communicator, const Operation& operation) {
    if (!settings().peer_to_peer) {
        return false;
    }
    if (operation.between_two()) {
        return operation.block() >= kLeastSent && reaches(communicator, operation.peer);
    }
    if (exchanges(operation.kind)) {
        return operation.block() >= kLeastSent && reaches_all(communicator);
    }
    return gathers(operation.kind) &&
           operation.receive_bytes(communicator.rank(), communicator.ranks()) >= kLeastGathered &&
           !takes_symmetric_path(operation, communicator) && reaches_all(communicator);
}

// One attempt to map the memory of a buffer into another process. If it has several handles, NCCL
// gives those back that it took before one of them could not be exported.
Outcome map(Buffer buffer) {
    bool several = false;
    for (std::uintptr_t at = buffer.begin(); at < buffer.end();) {
        const auto* pointer = reinterpret_cast<const void*>(at);
        std::uintptr_t base = 0;
        std::size_t bytes = 0;
        const bool is_there = emu_memory_find(pointer, 1, &base, &bytes, nullptr) != 0;
        several = several || buffer.end() > base + bytes;
        if (!is_there || (several && settings().version < kFirstOfSeveralHandles)) {
            return Outcome::kNone;
        }
        if (emu_memory_has_handle(pointer) == 0) {
            return settings().legacy_register && !several ? Outcome::kInEffect
                                                          : Outcome::kCudaMalloc;
        }
        if (emu_memory_is_exportable(pointer) == 0) {
            if (!several) {
                emu_memory_leak(pointer);
            }
            return Outcome::kNotExportable;
        }
        at = base + bytes;
    }
    return Outcome::kInEffect;
}

// A captured call registers all of the memory itself, whoever did so before, and finds the
// program's record if that holds all of it.
bool map_for_graph(RegistrationCache& registrations, Buffer buffer, bool by_messages,
                   bool* messages_first) {
    std::uintptr_t base = 0;
    std::size_t bytes = 0;
    if (map(buffer) != Outcome::kInEffect ||
        emu_memory_find(buffer.pointer, 1, &base, &bytes, nullptr) == 0) {
        return false;
    }
    *messages_first =
        registrations.mark_in_effect(base, std::max(base + bytes, buffer.end()), by_messages);
    return true;
}

Outcome map_registered(RegistrationCache& registrations, Buffer buffer, bool by_messages,
                       bool* messages_first) {
    if (!buffer.registered || !settings().local_register) {
        return Outcome::kNone;
    }
    const Outcome outcome = map(buffer);
    if (outcome == Outcome::kInEffect) {
        *messages_first = registrations.mark_in_effect(buffer.begin(), buffer.end(), by_messages);
    }
    return outcome;
}

void count(const std::vector<Outcome>& outcomes) {
    const auto has = [&](Outcome outcome) {
        return std::ranges::find(outcomes, outcome) != outcomes.end();
    };
    if (has(Outcome::kCudaMalloc)) {
        count_event("registered_cuda_malloc");
    } else if (has(Outcome::kNotExportable)) {
        count_event("registered_not_exportable");
    } else if (has(Outcome::kInEffect)) {
        count_event("registered_in_effect");
    }
}

std::string ranks_of(const std::vector<Descriptor>& all, std::uint8_t bit, bool in_effect) {
    std::string names;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (((all[rank].in_effect & bit) != 0) == in_effect) {
            names += (names.empty() ? "" : ", ") + std::to_string(rank);
        }
    }
    return names.empty() ? "none" : names;
}

// Whether a rank sends to another, and only one of the two buffers is in effect.
bool differ_in_pairs(const Operation& operation, const std::vector<Descriptor>& all) {
    const auto ranks = static_cast<int>(all.size());
    for (int from = 0; from < ranks; ++from) {
        for (int to = 0; to < ranks; ++to) {
            const bool sent = (all[from].in_effect & kSendInEffect) != 0;
            const bool received = (all[to].in_effect & kReceiveInEffect) != 0;
            if (from != to && operation.sends(from) && operation.receives(to) && sent != received) {
                return true;
            }
        }
    }
    return false;
}

} // namespace

void put_to_use(Communicator& communicator, Operation& operation, bool captured) {
    if (!may_count(communicator, operation)) {
        return;
    }
    const int rank = communicator.rank();
    const int ranks = communicator.ranks();
    RegistrationCache& registrations = communicator.registrations();
    const bool by_graph = captured && graph_register();
    std::vector<Outcome> registered;
    const bool by_messages = !gathers(operation.kind);
    bool messages_first = false;
    const auto use = [&](Buffer buffer, std::uint8_t bit, std::uint64_t& memory) {
        if (buffer.size == 0) {
            return;
        }
        const bool mapped =
            by_graph && map_for_graph(registrations, buffer, by_messages, &messages_first);
        const Outcome outcome =
            mapped ? Outcome::kInEffect
                   : map_registered(registrations, buffer, by_messages, &messages_first);
        operation.in_effect |= outcome == Outcome::kInEffect ? bit : 0;
        memory = mapped ? emu_memory_number(buffer.pointer) : 0;
        if (buffer.registered) {
            registered.push_back(outcome);
        }
    };
    const Buffer receive{operation.receive, operation.receive_bytes(rank, ranks),
                         operation.receive_registered};
    if (gathers(operation.kind)) {
        // A rank that is not the root of a broadcast names a send buffer too, and NCCL looks it up.
        const std::size_t sent = operation.block();
        const bool looked_up = settings().version >= kFirstWithReceiveBufferOnly || by_graph ||
                               registrations.covers(operation.send, sent) != nullptr;
        if (looked_up) {
            use(receive, kReceiveInEffect, operation.receive_memory);
        }
        if (messages_first && settings().version < kFirstForBoth) {
            report(Rule::kL9, communicator.subject(), "%s of %zu bytes", shape(operation.kind).name,
                   receive.size);
        }
    } else {
        // What the root of a gather or a scatter has for itself does not travel.
        const bool alone =
            shape(operation.kind).rooted && !operation.between_two() && operation.peer == rank;
        if (!alone || operation.kind != Kind::kGather) {
            use({operation.send, operation.send_bytes(rank, ranks), operation.send_registered},
                kSendInEffect, operation.send_memory);
        }
        if (!alone || operation.kind != Kind::kScatter) {
            use(receive, kReceiveInEffect, operation.receive_memory);
        }
    }
    count(registered);
}

void compare_memory(const Communicator& communicator, const Operation& operation) {
    const auto changed = [](const void* pointer, std::uint64_t memory) {
        return memory != 0 && emu_memory_number(pointer) != memory;
    };
    const bool sent = changed(operation.send, operation.send_memory);
    if (sent || changed(operation.receive, operation.receive_memory)) {
        report(Rule::kL10, communicator.subject(), "%s, %s buffer %p", shape(operation.kind).name,
               sent ? "send" : "receive", sent ? operation.send : operation.receive);
    }
}

void compare_effects(const Communicator& communicator, const Operation& operation,
                     const std::vector<Descriptor>& all) {
    const char* name = shape(operation.kind).name;
    if (gathers(operation.kind)) {
        const std::string with = ranks_of(all, kReceiveInEffect, true);
        const std::string without = ranks_of(all, kReceiveInEffect, false);
        if (with != "none" && without != "none") {
            report(Rule::kL8, communicator.subject(),
                   "%s of %zu bytes: the receive buffer is in effect on ranks %s, not on ranks %s",
                   name, operation.receive_bytes(communicator.rank(), communicator.ranks()),
                   with.c_str(), without.c_str());
        }
    } else if (exchanges(operation.kind) && differ_in_pairs(operation, all)) {
        report(Rule::kL8, communicator.subject(),
               "%s of %zu bytes a rank: the send buffer is in effect on ranks %s, the receive "
               "buffer on ranks %s",
               name, operation.block(), ranks_of(all, kSendInEffect, true).c_str(),
               ranks_of(all, kReceiveInEffect, true).c_str());
    }
}

void compare_effects(const Communicator& communicator, const Operation& receive,
                     unsigned in_effect_at_sender) {
    const bool sent = (in_effect_at_sender & kSendInEffect) != 0;
    const bool received = (receive.in_effect & kReceiveInEffect) != 0;
    if (sent != received) {
        report(Rule::kL8, communicator.subject(),
               "ncclSend of rank %d and ncclRecv of rank %d, %zu bytes: the send buffer is%s in "
               "effect, the receive buffer is%s",
               receive.peer, communicator.rank(), receive.block(), sent ? "" : " not",
               received ? "" : " not");
    }
}

} // namespace tracehook::rehearsal::nccl
