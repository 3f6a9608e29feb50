#include "attendance.h"

#include "calls.h"
#include "settings.h"

#include <cstdio>
#include <utility>

namespace tracehook::rehearsal::nccl {

Attendance::Attendance(Communicator& communicator, Lane lane, std::uint64_t number, Rule rule,
                       std::string name)
    : communicator_(communicator), lane_(lane), number_(number), rule_(rule),
      name_(std::move(name)),
      deadline_(std::chrono::steady_clock::now() + settings().window_timeout) {}

std::string Attendance::ranks_at(Mark mark, bool yes) const {
    std::string names;
    for (int rank = 0; rank < communicator_.ranks(); ++rank) {
        if (communicator_.meeting().has_reached(lane_, mark, rank, number_) == yes) {
            names += (names.empty() ? "" : ", ") + std::to_string(rank);
        }
    }
    return names;
}

Result Attendance::await(Mark mark, const char* verb) {
    const bool running = communicator_.meeting().wait([&] {
        return ranks_at(mark, false).empty() || std::chrono::steady_clock::now() >= deadline_;
    });
    if (ranks_at(mark, false).empty()) {
        return kSuccess;
    }
    if (!running) {
        return failed(kInternalError, name_ + ": aborted while waiting for the other ranks");
    }
    const std::string text = name_ + ": waited " +
                             std::to_string(settings().window_timeout.count() / 1000) +
                             " s; rank(s) " + ranks_at(mark, true) + " did " + verb + ", rank(s) " +
                             ranks_at(mark, false) + " did not";
    report(rule_, communicator_.subject(), "%s", text.c_str());
    std::fprintf(stderr, "rehearsal: rank %d: %s\n", communicator_.rank(), text.c_str());
    communicator_.fail(kSystemError, text);
    return failed(kSystemError, text);
}

} // namespace tracehook::rehearsal::nccl
