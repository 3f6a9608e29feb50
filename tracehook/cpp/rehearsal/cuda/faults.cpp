#include "faults.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <execinfo.h>
#include <optional>
#include <regex.h>
#include <string>
#include <thread>
#include <tuple>
#include <unistd.h>

namespace tracehook::rehearsal::cuda {

namespace {

struct FaultEntry {
    std::string name;
    std::string action;
    uint64_t ordinal; // 0: every call
    int result;
    std::chrono::microseconds duration;
    std::string item; // as it was written
    std::atomic<uint64_t> calls{0};
};

using Entries = std::deque<FaultEntry>;

std::string text(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

// For `tracehook rehearse`, which says which faults were never played. Once a process and fault.
void note_played(std::size_t number, const std::string& item) {
    static std::array<std::atomic<bool>, 64> noted{};
    static const std::string& directory = *new std::string(text("TRACEHOOK_EMU_DIR"));
    if (directory.empty() || number >= noted.size() || noted[number].exchange(true)) {
        return;
    }
    const std::string path = directory + "/played." + std::to_string(getpid());
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

using Parts = std::array<std::string, 10>;

// The item and the groups of its syntax, each empty if it is not there. Not a std::regex: that
// takes longer to compile than all else of this library.
std::optional<Parts> parts_of(const std::string& item) {
    static const regex_t& syntax = []() -> const regex_t& {
        auto* const made = new regex_t;
        regcomp(made,
                "^((p?nccl|cu)[A-Za-z0-9_]+):(fail|slow|in_progress)@([*]|[0-9]{1,9})"
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

// Never destroyed: a call may still be looking.
Entries& parse(const std::string& list) {
    constexpr int kInternalError = 3; // of NCCL
    const std::string own_rank = text("RANK");
    auto& entries = *new Entries;
    for (std::size_t begin = 0; begin < list.size();) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        const std::string item = list.substr(begin, end - begin);
        begin = end + 1;
        const std::optional<Parts> parts = parts_of(item);
        const auto& [whole, name, kind, action, ordinal, value, number, unit, at_rank, rank] =
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
        if (!rank.empty() && (own_rank.empty() || std::stoi(rank) != std::atoi(own_rank.c_str()))) {
            continue;
        }
        const int otherwise = kind == "cu" ? static_cast<int>(kUnknown) : kInternalError;
        entries.emplace_back(name, action, ordinal == "*" ? 0 : std::stoull(ordinal),
                             !timed && !number.empty() ? std::stoi(number) : otherwise,
                             timed ? duration_of(number, unit) : std::chrono::microseconds(0),
                             item);
    }
    return entries;
}

std::atomic<Entries*>& played() {
    static std::atomic<Entries*> entries{&parse(text("TRACEHOOK_EMU_FAULTS"))};
    return entries;
}

// Whether tracehook called CUDA: the first frame outside of the emulation is its own.
bool called_by_tracehook() {
    constexpr int kFrames = 16;
    std::array<void*, kFrames> frames;
    const int count = backtrace(frames.data(), kFrames);
    for (int i = 0; i < count; ++i) {
        Dl_info found{};
        if (dladdr(frames[static_cast<size_t>(i)], &found) == 0 || found.dli_fname == nullptr) {
            return false;
        }
        if (std::strstr(found.dli_fname, "/libcudart_emulated.so") == nullptr &&
            std::strstr(found.dli_fname, "/libcuda.so") == nullptr) {
            return std::strstr(found.dli_fname, "/_core.") != nullptr;
        }
    }
    return false;
}

} // namespace

Status suffer(const char* call) {
    const emu_fault fault = emu_fault_of(call);
    if (fault.delay_us != 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(fault.delay_us));
    }
    return static_cast<Status>(fault.result);
}

EMU_EXPORT emu_fault emu_fault_of(const char* call) {
    emu_fault fault{};
    Entries& entries = *played().load(std::memory_order_acquire);
    bool counts = std::strstr(call, "nccl") != nullptr;
    for (size_t i = 0; i < entries.size(); ++i) {
        FaultEntry& entry = entries[i];
        if (entry.name != call || !(counts = counts || called_by_tracehook())) {
            continue;
        }
        const uint64_t number = entry.calls.fetch_add(1) + 1;
        if (entry.ordinal != 0 && entry.ordinal != number) {
            continue;
        }
        note_played(i, entry.item);
        if (entry.action == "fail") {
            fault.result = entry.result;
        } else if (entry.action == "slow") {
            fault.delay_us += entry.duration.count();
        } else {
            fault.holding_us += entry.duration.count();
        }
    }
    return fault;
}

EMU_EXPORT void emu_play_faults(const char* list) {
    played().store(&parse(list), std::memory_order_release);
}

EMU_EXPORT uint64_t emu_fault_calls(const char* call) {
    for (const FaultEntry& entry : *played().load(std::memory_order_acquire)) {
        if (entry.name == call) {
            return entry.calls.load();
        }
    }
    return 0;
}

} // namespace tracehook::rehearsal::cuda
