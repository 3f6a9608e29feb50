#include "waiting.h"

#include "settings.h"

#include <atomic>
#include <cstdio>
#include <numeric>
#include <unistd.h>
#include <utility>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::chrono::seconds kLong{1};

thread_local WaitScope* innermost = nullptr;

// Whole at once, because somebody reads it at any time.
void replace(const std::string& path, const std::string& text) {
    const std::string part = path + ".part";
    std::FILE* file = std::fopen(part.c_str(), "we");
    if (file == nullptr) {
        return;
    }
    const bool whole = std::fputs(text.c_str(), file) >= 0;
    if (std::fclose(file) == 0 && whole) {
        std::rename(part.c_str(), path.c_str());
    }
}

// A rank in the communicator, as the reader knows it. Of one that has not come to where the
// communicator is made only this number is known. All ranks of the job together keep theirs.
std::string described(const Communicator& communicator, int rank) {
    const Rendezvous::Member member = communicator.meeting().member(rank);
    const bool is_world =
        communicator.ranks() == settings().world && communicator.rank() == settings().rank;
    const int known = member.process == 0 && is_world ? rank : member.rank;
    return "[" + std::to_string(known) + ", " + std::to_string(member.process) +
           (member.process == 0 ? ", " + std::to_string(rank) : "") + "]";
}

std::string list_of(const Communicator& communicator, const std::vector<int>& ranks) {
    std::string text;
    for (const int rank : ranks) {
        text += (text.empty() ? "" : ", ") + described(communicator, rank);
    }
    return "[" + text + "]";
}

} // namespace

WaitScope::WaitScope(const Communicator& communicator, std::function<std::string()> what,
                     std::function<std::vector<int>()> missing)
    : communicator_(communicator), what_(std::move(what)), missing_(std::move(missing)),
      outer_(innermost) {
    innermost = this;
}

WaitScope::~WaitScope() {
    innermost = outer_;
    if (!path_.empty()) {
        unlink(path_.c_str());
    }
}

WaitScope* WaitScope::mine() {
    return innermost;
}

void WaitScope::tick() {
    const auto now = std::chrono::steady_clock::now();
    if (!begun_) {
        begun_ = true;
        began_ = written_ = now;
    } else if (now - written_ > kLong && settings().records) {
        written_ = now;
        write();
    }
}

void WaitScope::write() {
    static std::atomic<unsigned> count{0};
    if (path_.empty()) {
        path_ = settings().directory + "/wait." + std::to_string(getpid()) + "." +
                std::to_string(++count) + ".json";
    }
    std::vector<int> all(static_cast<std::size_t>(communicator_.ranks()));
    std::iota(all.begin(), all.end(), 0);
    const std::chrono::nanoseconds since = began_.time_since_epoch();
    const Name& name = communicator_.name();
    replace(path_, "{\"rank\": " + std::to_string(settings().rank) +
                       ", \"pid\": " + std::to_string(getpid()) + ", \"communicator\": \"" +
                       communicator_.key().text() + "\", \"key\": \"" + key_text(name.key) +
                       "\", \"group\": \"" + escaped(name.given) + "\", \"call\": \"" + what_() +
                       "\", \"since_ns\": " + std::to_string(since.count()) +
                       ", \"members\": " + list_of(communicator_, all) +
                       ", \"missing\": " + list_of(communicator_, missing_()) + "}\n");
}

} // namespace tracehook::rehearsal::nccl
