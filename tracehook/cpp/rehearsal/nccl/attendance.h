// The wait of one rank until all have come to an exchange of a lane, but not for ever.
//
// On hardware a rank that does not come is a hang. Here `rule` is broken at the deadline
// (TRACEHOOK_EMU_WINDOW_TIMEOUT), and the communicator has failed. An abort ends the wait at once.
#pragma once

#include "communicator.h"

#include <chrono>
#include <cstdint>
#include <string>

namespace tracehook::rehearsal::nccl {

class Attendance {
  public:
    // The deadline counts from now. `name`: what messages call the exchange.
    Attendance(Communicator& communicator, Lane lane, std::uint64_t number, Rule rule,
               std::string name);

    const std::string& name() const { return name_; }

    // Until every rank has reached the mark. `verb`: what those did who have.
    Result await(Mark mark, const char* verb);

  private:
    std::string ranks_at(Mark mark, bool yes) const;

    Communicator& communicator_;
    const Lane lane_;
    const std::uint64_t number_;
    const Rule rule_;
    const std::string name_;
    const std::chrono::steady_clock::time_point deadline_;
};

} // namespace tracehook::rehearsal::nccl
