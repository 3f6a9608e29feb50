#include "faults.h"

#include "settings.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <optional>
#include <regex.h>
#include <string>
#include <tuple>
#include <unistd.h>
#include <vector>

namespace tracehook::emulator::nccl {

namespace {

struct FaultEntry {
    std::string name;
    std::string action;
    std::uint64_t ordinal; // 0: every call
    Result result;
    std::chrono::microseconds duration;
    std::string item; // as it was written
};

// For `tracehook rehearse`, which says which faults were never played. Once a process and fault.
void note_played(std::size_t number, const std::string& item) {
    static std::array<std::atomic<bool>, 64> noted{};
    if (!settings().records || number >= noted.size() || noted[number].exchange(true)) {
        return;
    }
    const std::string path = settings().directory + "/played." + std::to_string(getpid());
    if (std::FILE* file = std::fopen(path.c_str(), "ae")) {
        std::fprintf(file, "%s\n", item.c_str());
        std::fclose(file);
    }
}

std::chrono::microseconds duration_of(const std::string& number, const std::string& unit) {
    const long long value = std::stoll(number);
    return std::chrono::microseconds(unit == "s"    ? value * 1'000'000
                                     : unit == "ms" ? value * 1000
                                                    : value);
}

using Parts = std::array<std::string, 9>;

// The item and the groups of its syntax, each empty if it is not there. Not a std::regex: that
// takes longer to compile than all else of this library.
std::optional<Parts> parts_of(const std::string& item) {
    static const regex_t& syntax = []() -> const regex_t& {
        auto* const made = new regex_t;
        regcomp(made,
                "^(p?nccl[A-Za-z0-9_]+):(fail|slow|in_progress)@([*]|[0-9]{1,9})"
                "(=([0-9]{1,9})(us|ms|s)?)?(#rank([0-9]{1,9}))?$",
                REG_EXTENDED);
        return *made;
    }();
    std::array<regmatch_t, std::tuple_size_v<Parts>> groups;
    if (regexec(&syntax, item.c_str(), groups.size(), groups.data(), 0) != 0) {
        return std::nullopt;
    }
    Parts parts;
    for (std::size_t i = 0; i < groups.size(); ++i) {
        if (groups[i].rm_so >= 0) {
            parts[i] = item.substr(groups[i].rm_so, groups[i].rm_eo - groups[i].rm_so);
        }
    }
    return parts;
}

std::vector<FaultEntry> parse(const std::string& list) {
    std::vector<FaultEntry> entries;
    for (std::size_t begin = 0; begin < list.size();) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        const std::string item = list.substr(begin, end - begin);
        begin = end + 1;
        const std::optional<Parts> parts = parts_of(item);
        const auto& [whole, name, action, ordinal, value, number, unit, at_rank, rank] =
            parts.value_or(Parts{});
        const bool timed = !unit.empty();
        if (!parts || (action == "fail" ? timed : !timed)) {
            std::fprintf(stderr,
                         "rehearsal: TRACEHOOK_EMU_FAULTS: cannot read '%s', ignored; write "
                         "name:fail@N=RESULT, name:slow@N=50ms or name:in_progress@N=500ms, N a "
                         "number or *, with #rankR for one rank only\n",
                         item.c_str());
            continue;
        }
        if (!rank.empty() && std::stoi(rank) != settings().rank) {
            continue;
        }
        entries.push_back(
            {name, action, ordinal == "*" ? 0 : std::stoull(ordinal),
             !timed && !number.empty() ? static_cast<Result>(std::stoi(number)) : kInternalError,
             timed ? duration_of(number, unit) : std::chrono::microseconds(0), item});
    }
    return entries;
}

} // namespace

Fault fault_for(const char* name, std::uint64_t ordinal) {
    static const std::vector<FaultEntry>& entries =
        *new std::vector<FaultEntry>(parse(settings().faults));
    Fault fault;
    for (const FaultEntry& entry : entries) {
        if (entry.name != name || (entry.ordinal != 0 && entry.ordinal != ordinal)) {
            continue;
        }
        note_played(static_cast<std::size_t>(&entry - entries.data()), entry.item);
        if (entry.action == "fail") {
            fault.result = entry.result;
        } else if (entry.action == "slow") {
            fault.delay += entry.duration;
        } else {
            fault.holding += entry.duration;
        }
    }
    return fault;
}

} // namespace tracehook::emulator::nccl
