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
#include <string>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::size_t kRules = static_cast<std::size_t>(Rule::kCount);

constexpr std::array<RuleText, kRules> kTexts = {{
    {"C2", "a communicator that is not ready was called"},
    {"C4", "a communicator was ended while registrations were left on it"},
    {"C5", "a dead communicator was called"},
    {"C8", "a communicator was ended while a CUDA graph with its operations lived"},
    {"I1", "memory was freed while another process had it open"},
    {"L2", "a handle that is not registered was deregistered"},
    {"L3", "memory that is not mapped on the communicator's device was registered"},
    {"L4", "memory was freed while it was registered"},
    {"L5", "a registration was undone while an operation that used it still ran"},
    {"L6", "two threads were inside one communicator at once"},
    {"L7", "the ranks of one operation differ in what they registered"},
    {"L8", "the ranks differ in whether the buffer of one call is registered in effect: NCCL waits "
           "for ever, or hands over wrong data"},
    {"L9", "a collective used a registration that a message used first"},
    {"L10",
     "a graph was launched whose buffer has other memory than NCCL registered in its capture"},
    {"M1", "the ranks of one operation called different things"},
    {"M2", "a buffer of an operation is not mapped"},
    {"W1", "some ranks did not register a window that others registered"},
    {"W2", "the ranks registered windows of different sizes as one"},
    {"W3", "the ranks registered a window with different flags"},
    {"W4", "the ranks registered and deregistered windows in different orders"},
    {"W6", "a window was registered while a stream was being captured"},
    {"W7", "memory that cannot be a window was registered as one"},
    {"W8", "windows of one communicator overlap"},
    {"W9", "a handle was given to the wrong function"},
    {"W10", "the windows of a communicator are larger than a device"},
    {"W12", "windows were used after a registration had failed"},
    {"W13", "a window was deregistered while an operation used it"},
    {"W14", "a window of a communicator that is gone was used"},
    {"W15", "a buffer starts in a window and ends outside of it"},
    {"W16", "the ranks of one operation use different places of their windows"},
    {"W17", "memory was freed under a window"},
    {"W18", "some ranks did not create a device communicator that others created"},
    {"W19", "a window was deregistered while a device communicator lived"},
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

// Holding the lock.
std::string cause_of(Rule rule, const Subject& subject) {
    const auto found = book().failed.find(subject.key);
    return follows_a_failed_window(rule) && found != book().failed.end() ? found->second : "";
}

void append_record(const RuleText& rule, const Subject& subject, const std::string& details,
                   const std::string& cause) {
    if (!settings().records || !ensure_directory()) {
        return;
    }
    const std::string path =
        settings().directory + "/violations." + std::to_string(getpid()) + ".jsonl";
    std::FILE* file = std::fopen(path.c_str(), "ae");
    if (file == nullptr) {
        return;
    }
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now); // as the log does
    std::fprintf(file,
                 "{\"rule\": \"%s\", \"sentence\": \"%s\", \"rank\": %d, \"pid\": %d, "
                 "\"communicator\": \"%p\", \"comm\": \"%s\", \"global_rank\": %d, \"details\": "
                 "\"%s\", \"consequence_of\": \"%s\", \"t_ns\": %lld}\n",
                 rule.id, rule.sentence, subject.rank, getpid(), subject.communicator,
                 key_text(subject.key).c_str(), settings().rank, escaped(details).c_str(),
                 escaped(cause).c_str(),
                 static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
    std::fclose(file);
}

} // namespace

const RuleText& rule_text(Rule rule) {
    return kTexts[static_cast<std::size_t>(rule)];
}

void report(Rule rule, const Subject& subject, const char* format, ...) {
    if (settings().rules == RuleMode::kOff) {
        return;
    }
    std::array<char, 1024> details{};
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(details.data(), details.size(), format, arguments);
    va_end(arguments);

    const RuleText& text = rule_text(rule);
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
    std::FILE* file =
        ensure_directory()
            ? std::fopen((settings().directory + "/failures." + std::to_string(getpid()) + ".jsonl")
                             .c_str(),
                         "ae")
            : nullptr;
    if (file != nullptr) {
        timespec now{};
        clock_gettime(CLOCK_MONOTONIC, &now);
        std::fprintf(file, "{\"pid\": %d, \"comm\": \"%s\", \"why\": \"%s\", \"t_ns\": %lld}\n",
                     getpid(), key_text(subject.key).c_str(), escaped(why).c_str(),
                     static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
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

void hold_violations() {
    book().mutex.lock();
}

void release_violations() {
    book().mutex.unlock();
}

void forget_violations() {
    book().counts.fill(0);
    book().failed.clear();
}

} // namespace tracehook::rehearsal::nccl

// What call_witness() calls from now on.
TRACEHOOK_EXPORTED void emu_nccl_set_witness(void (*see)()) {
    tracehook::rehearsal::nccl::witness.store(see);
}
