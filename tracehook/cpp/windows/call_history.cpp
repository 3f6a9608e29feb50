#include "windows/call_history.h"

namespace tracehook::windows {

namespace {

template <typename Value>
void put(std::vector<Value>& ring, std::size_t kept, std::uint64_t call, const Value& value) {
    const std::size_t place = call % kept;
    if (place >= ring.size()) {
        ring.resize(place + 1);
    }
    ring[place] = value;
}

} // namespace

void CallHistory::add(std::uint64_t call, const Use& use, std::uint64_t digest) {
    if (call != next_) {
        first_ = call;
    }
    put(uses_, kUses, call, use);
    put(digests_, kDigests, call, digest);
    next_ = call + 1;
}

bool CallHistory::has(std::uint64_t call, std::size_t kept) const noexcept {
    return call >= first_ && call < next_ && next_ - call <= kept;
}

std::optional<Use> CallHistory::use(std::uint64_t call) const noexcept {
    return has(call, kUses) ? std::optional(uses_[call % kUses]) : std::nullopt;
}

std::optional<std::uint64_t> CallHistory::digest(std::uint64_t call) const noexcept {
    return has(call, kDigests) ? std::optional(digests_[call % kDigests]) : std::nullopt;
}

} // namespace tracehook::windows
