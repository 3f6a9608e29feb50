#include "faults.h"

#include "settings.h"

#include <algorithm>
#include <cstdio>
#include <regex>
#include <string>
#include <vector>

namespace tracehook::emulator::nccl {

namespace {

struct Entry {
    std::string name;
    std::string action;
    std::uint64_t ordinal; // 0: every call
    Result result;
    std::chrono::microseconds duration;
};

std::chrono::microseconds duration_of(const std::string& number, const std::string& unit) {
    const long long value = std::stoll(number);
    return std::chrono::microseconds(unit == "s"    ? value * 1'000'000
                                     : unit == "ms" ? value * 1000
                                                    : value);
}

std::vector<Entry> parse(const std::string& list) {
    static const std::regex kSyntax(
        R"((p?nccl\w+):(fail|slow|in_progress)@(\*|\d{1,9})(?:=(\d{1,9})(us|ms|s)?)?(?:#rank(\d{1,9}))?)");
    std::vector<Entry> entries;
    for (std::size_t begin = 0; begin < list.size();) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        const std::string item = list.substr(begin, end - begin);
        begin = end + 1;
        std::smatch part;
        const bool read = std::regex_match(item, part, kSyntax);
        const bool timed = read && part[4].matched && part[5].matched;
        if (!read || (part[2] == "fail" ? part[5].matched : !timed)) {
            std::fprintf(stderr,
                         "rehearsal: TRACEHOOK_EMU_FAULTS: cannot read '%s', ignored; write "
                         "name:fail@N=RESULT, name:slow@N=50ms or name:in_progress@N=500ms, N a "
                         "number or *, with #rankR for one rank only\n",
                         item.c_str());
            continue;
        }
        if (part[6].matched && std::stoi(part[6]) != settings().rank) {
            continue;
        }
        entries.push_back(
            {part[1], part[2], part[3] == "*" ? 0 : std::stoull(part[3]),
             !timed && part[4].matched ? static_cast<Result>(std::stoi(part[4])) : kInternalError,
             timed ? duration_of(part[4], part[5]) : std::chrono::microseconds(0)});
    }
    return entries;
}

} // namespace

Fault fault_for(const char* name, std::uint64_t ordinal) {
    static const std::vector<Entry>& entries = *new std::vector<Entry>(parse(settings().faults));
    Fault fault;
    for (const Entry& entry : entries) {
        if (entry.name != name || (entry.ordinal != 0 && entry.ordinal != ordinal)) {
            continue;
        }
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
