#include "symmetric.h"

#include <algorithm>
#include <stdexcept>

namespace tracehook {

namespace {

// Inside the gate for one statement; tells whether the communicator was alive.
class Inside {
  public:
    explicit Inside(core::Registrations& member)
        : member_(member), alive_(member.gate().enter(member)) {}
    ~Inside() {
        if (alive_) {
            member_.gate().leave();
        }
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    explicit operator bool() const noexcept { return alive_; }

  private:
    core::Registrations& member_;
    const bool alive_;
};

} // namespace

std::vector<std::uint64_t> Member::missing(const std::vector<std::uint64_t>& segments) const {
    std::vector<std::uint64_t> without;
    std::ranges::copy_if(segments, std::back_inserter(without), [&](std::uint64_t segment) {
        return !registrations_->windows().holds_segment(segment);
    });
    return without;
}

std::vector<core::Outcome> Member::register_windows(const std::vector<std::uint64_t>& segments,
                                                    bool capturing) {
    std::vector<core::PoolSegment> found;
    for (const std::uint64_t id : segments) {
        if (const auto segment = bank_->get(id)) {
            found.push_back(*segment);
        }
    }
    const Inside inside(*registrations_);
    return inside && found.size() == segments.size()
               ? registrations_->register_windows(found, capturing)
               : std::vector<core::Outcome>{};
}

bool Member::confirm_windows() {
    const Inside inside(*registrations_);
    if (inside) {
        registrations_->confirm_windows();
    } else {
        registrations_->drop_unconfirmed_windows(); // dead: drops the records only
    }
    return static_cast<bool>(inside);
}

std::size_t Member::drop_windows() {
    const Inside inside(*registrations_);
    return registrations_->drop_unconfirmed_windows();
}

std::size_t Member::deregister_windows(const std::vector<std::uint64_t>& segments) {
    const Inside inside(*registrations_);
    return inside ? registrations_->deregister_windows(segments) : 0;
}

void SymmetricScope::enter(bool graph) {
    const bool for_graph = graph || shim_.capturing(eager_->device());
    (for_graph ? graph_ : eager_)->enter(owner_);
}

std::vector<std::uint64_t> SymmetricScope::leave() {
    const core::Scope* const scope = core::Scopes::current();
    if (scope == nullptr || scope->owner != owner_ ||
        (scope->source != eager_.get() && scope->source != graph_.get())) {
        throw std::logic_error("scopes of symmetric memory must end in the reverse order of their "
                               "beginning, on the thread that began them");
    }
    const std::vector<std::uint64_t> touched =
        (scope->source == graph_.get() ? graph_ : eager_)->leave();
    if (touched.empty()) {
        return touched;
    }
    std::vector<std::uint64_t> wanted;
    for (const std::uint64_t segment : touched) {
        const bool everywhere =
            !members_.empty() && std::ranges::all_of(members_, [&](const Member& member) {
                return !member->dead() && member->windows().holds_segment(segment);
            });
        if (!everywhere) {
            wanted.push_back(segment);
        }
    }
    return wanted;
}

} // namespace tracehook
