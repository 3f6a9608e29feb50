// Birth and end of communicators.
//
// Called by the exported functions with an admitted Entry. Births wait for the other ranks (on a
// thread of their own for non-blocking communicators) and are put off to the end of a group. Ends
// are carried out at once.
#pragma once

#include "entry.h"
#include "names.h"

#include <vector>

namespace tracehook::rehearsal::nccl {

// ncclCommInitRank and its relatives. `key` is what the ranks meet under, `name` what logs have.
// `config` may be null.
Result create(const Entry& entry, Comm* out, Key key, Name name, int ranks, int rank,
              const Config* config);
Result split(const Entry& entry, int color, int key, Comm* out, const Config* config);
Result shrink(const Entry& entry, std::vector<int> excluded, Comm* out, const Config* config,
              bool abort_first);

// ncclCommGrow of a rank that is in the communicator already; new ranks call create(). `grow_key`
// is what the next one will be called.
Result grow(const Entry& entry, int ranks, Comm* out, const Config* config);
Key grow_key(const Communicator& parent);

Result suspend(const Entry& entry);
Result memory_stat(const Communicator& communicator, int stat, std::uint64_t& value);
Result resume(const Entry& entry);
Result finalize(const Entry& entry);
Result destroy(const Entry& entry);
Result abort_communicator(const Entry& entry);
Result revoke(const Entry& entry);

} // namespace tracehook::rehearsal::nccl
