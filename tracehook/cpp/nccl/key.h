// The key of a communicator: 64 bits, equal on all its ranks and without any communication, because
// it is computed from what all of them passed to NCCL. Two communicators of a job have different
// keys (up to a 64-bit collision).
#pragma once

#include "nccl/abi.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace tracehook::nccl {

std::uint64_t key_of_unique_ids(std::span<const UniqueId> ids) noexcept;

// `count` is how many children were made from the parent before this one, `kind` "split",
// "shrink" or "grow", and `colour` what tells siblings of one call apart (for a shrink: a hash of
// the excluded ranks; for a grow: the new number of ranks).
std::uint64_t key_of_child(std::uint64_t parent, std::string_view kind, std::int64_t colour,
                           std::uint64_t count) noexcept;

// From a name that the ranks share (a process group's) for a communicator whose creation was not
// seen.
std::uint64_t key_of_name(std::string_view name) noexcept;

// Of the communicator that `count` devices of this process share (ncclCommInitAll), the `number`th
// of them: no other process takes part, and none has this key.
std::uint64_t key_of_own_devices(int count, std::uint64_t number) noexcept;

} // namespace tracehook::nccl
