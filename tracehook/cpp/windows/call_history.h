// The last calls of one communicator that were counted into its digest: what each used, and the
// digest after it. Two rings, so that remembering a call allocates nothing after the first lap.
//
// Not for several threads: Windows guards it with its mutex.
#pragma once

#include "windows/placement.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tracehook::windows {

class CallHistory {
  public:
    // Calls are added in the order of their numbers. One that leaves a gap empties the history.
    void add(std::uint64_t call, const Use& use, std::uint64_t digest);

    std::optional<Use> use(std::uint64_t call) const noexcept;
    std::optional<std::uint64_t> digest(std::uint64_t call) const noexcept;

  private:
    static constexpr std::size_t kUses = 1024;
    static constexpr std::size_t kDigests = 16384;

    bool has(std::uint64_t call, std::size_t kept) const noexcept;

    std::vector<Use> uses_; // by number modulo kUses
    std::vector<std::uint64_t> digests_;
    std::uint64_t first_ = 0; // number of the first call since the last gap
    std::uint64_t next_ = 0;  // number of the next call
};

} // namespace tracehook::windows
