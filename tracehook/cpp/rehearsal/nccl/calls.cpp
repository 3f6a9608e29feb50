#include "calls.h"

#include "rules.h"
#include "settings.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <pthread.h>
#include <string_view>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {

namespace {

struct Tally {
    std::mutex mutex; // protects both maps; comes last
    std::map<std::string, std::uint64_t, std::less<>> calls;
    std::map<std::string, std::uint64_t, std::less<>> events;
};

Tally& tally() {
    static Tally& kept = *new Tally; // never destroyed: a late thread may still call
    return kept;
}

std::string& last_error_text() {
    thread_local std::string text;
    return text;
}

void append(std::string& line, const char* name, std::uint64_t value) {
    line += ", \"" + std::string(name) + "\": " + std::to_string(value);
}

} // namespace

void count_call(const char* name) {
    const std::lock_guard lock(tally().mutex);
    ++tally().calls[name];
}

void count_event(const char* name) {
    const std::lock_guard lock(tally().mutex);
    ++tally().events[name];
}

Result failed(Result result, const std::string& text) {
    last_error_text() = text;
    return result;
}

const char* last_error() {
    return last_error_text().c_str();
}

void write_summary(std::size_t registrations_left, std::size_t communicators_left) {
    const std::uint64_t violations = violation_count();
    const std::lock_guard lock(tally().mutex);
    if (tally().calls.empty()) {
        return;
    }
    std::string line = "{\"pid\": " + std::to_string(getpid());
    line += ", \"rank\": " + std::to_string(settings().rank);
    append(line, "violations", violations);
    append(line, "registrations_left", registrations_left);
    append(line, "communicators_left", communicators_left);
    for (const auto& [name, count] : tally().events) {
        append(line, name.c_str(), count);
    }
    line += ", \"calls\": {";
    std::string separator;
    for (const auto& [name, count] : tally().calls) {
        line += separator + "\"" + name + "\": " + std::to_string(count);
        separator = ", ";
    }
    line += "}}\n";
    if (std::FILE* file = open_record("summary")) {
        std::fputs(line.c_str(), file);
        std::fclose(file);
    }
}

void part_calls_at_forks() {
    pthread_atfork([] { tally().mutex.lock(); }, [] { tally().mutex.unlock(); },
                   [] {
                       tally().calls.clear();
                       tally().events.clear();
                       tally().mutex.unlock();
                   });
}

} // namespace tracehook::rehearsal::nccl

// How often the function `name` was called in this process; "any" for all together.
extern "C" __attribute__((visibility("default"))) std::uint64_t
emu_nccl_call_count(const char* name) {
    auto& tally = tracehook::rehearsal::nccl::tally();
    const std::lock_guard lock(tally.mutex);
    std::uint64_t total = 0;
    for (const auto& [called, count] : tally.calls) {
        if (std::string_view(name) == "any" || called == name) {
            total += count;
        }
    }
    return total;
}
