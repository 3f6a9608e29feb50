#include "rules.h"

#include "exports.h"
#include "naming.h"
#include "settings.h"

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <pthread.h>
#include <string>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::size_t kRules = static_cast<std::size_t>(Rule::kCount);

struct RuleText {
    const char* id;
    const char* sentence;
};

constexpr std::array<RuleText, kRules> kTexts = {{
#define RULE(name, sentence) {#name, sentence},
#include "rules.def"
#undef RULE
}};

struct Book {
    std::mutex
        mutex; // protects the counts and the order of the lines; comes after every other lock
    std::array<std::uint64_t, kRules> counts{};
    std::map<std::uint64_t, std::string> failed; // why windows failed, by key of the communicator
};

std::atomic<void (*)()> witness{nullptr};

Book& book() {
    static Book& kept = *new Book; // never destroyed: a late thread may still report
    return kept;
}

bool ends_a_registration(Rule rule) {
    return rule == Rule::kW1 || rule == Rule::kW2 || rule == Rule::kW3 || rule == Rule::kW4 ||
           rule == Rule::kW6 || rule == Rule::kW7 || rule == Rule::kW8 || rule == Rule::kW10;
}

bool follows_a_failed_window(Rule rule) {
    return rule == Rule::kW1 || rule == Rule::kW12 || rule == Rule::kW16;
}

// As the log has it.
long long now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Holding the lock.
std::string cause_of(Rule rule, const Subject& subject) {
    const auto found = book().failed.find(subject.key);
    return follows_a_failed_window(rule) && found != book().failed.end() ? found->second : "";
}

void append_record(const RuleText& rule, const Subject& subject, const std::string& details,
                   const std::string& cause) {
    std::FILE* file = open_record("violations");
    if (file == nullptr) {
        return;
    }
    std::fprintf(file,
                 "{\"rule\": \"%s\", \"sentence\": \"%s\", \"rank\": %d, \"pid\": %d, "
                 "\"communicator\": \"%p\", \"comm\": \"%s\", \"global_rank\": %d, \"details\": "
                 "\"%s\", \"consequence_of\": \"%s\", \"t_ns\": %lld}\n",
                 rule.id, rule.sentence, subject.rank, getpid(), subject.communicator,
                 key_text(subject.key).c_str(), settings().rank, escaped(details).c_str(),
                 escaped(cause).c_str(), now_ns());
    std::fclose(file);
}

} // namespace

void report(Rule rule, const Subject& subject, const char* format, ...) {
    if (settings().rules == RuleMode::kOff) {
        return;
    }
    std::array<char, 1024> details{};
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(details.data(), details.size(), format, arguments);
    va_end(arguments);

    const RuleText& text = kTexts[static_cast<std::size_t>(rule)];
    const std::lock_guard lock(book().mutex);
    const std::string cause = cause_of(rule, subject);
    if (cause.empty()) {
        ++book().counts[static_cast<std::size_t>(rule)];
    }
    if (ends_a_registration(rule) && subject.key != 0) {
        book().failed.try_emplace(subject.key, "rule " + std::string(text.id) + ", broken before");
    }
    // One call, so that the lines of several ranks on one stderr do not mix.
    std::fprintf(stderr, "rehearsal: rule %s broken: %s; rank %d, pid %d, communicator %p, %s%s\n",
                 text.id, text.sentence, subject.rank, getpid(), subject.communicator,
                 details.data(),
                 cause.empty() ? "" : (" (a consequence of: " + cause + ")").c_str());
    append_record(text, subject, details.data(), cause);
    if (settings().rules == RuleMode::kAbort && cause.empty()) {
        std::abort();
    }
}

void call_witness() {
    if (const auto see = witness.load()) {
        see();
    }
}

void note_failed_window(const Subject& subject, const std::string& why) {
    if (!settings().records) {
        return;
    }
    const std::lock_guard lock(book().mutex);
    book().failed.try_emplace(subject.key, why);
    if (std::FILE* file = open_record("failures")) {
        std::fprintf(file, "{\"pid\": %d, \"comm\": \"%s\", \"why\": \"%s\", \"t_ns\": %lld}\n",
                     getpid(), key_text(subject.key).c_str(), escaped(why).c_str(), now_ns());
        std::fclose(file);
    }
}

std::uint64_t violation_count() {
    const std::lock_guard lock(book().mutex);
    std::uint64_t total = 0;
    for (const std::uint64_t count : book().counts) {
        total += count;
    }
    return total;
}

void print_violations() {
    const std::lock_guard lock(book().mutex);
    std::string names;
    std::size_t broken = 0;
    for (std::size_t rule = 0; rule < kRules; ++rule) {
        if (book().counts[rule] != 0) {
            ++broken;
            names += (names.empty() ? "" : ", ") + std::string(kTexts[rule].id) + " x" +
                     std::to_string(book().counts[rule]);
        }
    }
    if (broken != 0) {
        std::fprintf(stderr, "rehearsal: %zu rule(s) broken: %s; rank %d, pid %d\n", broken,
                     names.c_str(), settings().rank, getpid());
    }
}

void part_violations_at_forks() {
    pthread_atfork([] { book().mutex.lock(); }, [] { book().mutex.unlock(); },
                   [] {
                       book().counts.fill(0);
                       book().failed.clear();
                       book().mutex.unlock();
                   });
}

} // namespace tracehook::rehearsal::nccl

// What call_witness() calls from now on.
TRACEHOOK_EXPORTED void emu_nccl_set_witness(void (*see)()) {
    tracehook::rehearsal::nccl::witness.store(see);
}
