#include "waiting.h"

#include "settings.h"

#include <atomic>
#include <cstdio>
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

std::string list_of(const std::vector<Rendezvous::Member>& members) {
    std::string text;
    for (const Rendezvous::Member& member : members) {
        text += (text.empty() ? "" : ", ") + std::string("[") + std::to_string(member.rank) + ", " +
                std::to_string(member.process) + "]";
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
    const Rendezvous& meeting = communicator_.meeting();
    std::vector<Rendezvous::Member> members, missing;
    for (int rank = 0; rank < communicator_.ranks(); ++rank) {
        members.push_back(meeting.member(rank));
    }
    for (const int rank : missing_()) {
        missing.push_back(members[rank]);
    }
    const std::chrono::nanoseconds since = began_.time_since_epoch();
    const Name& name = communicator_.name();
    replace(path_, "{\"rank\": " + std::to_string(settings().rank) +
                       ", \"pid\": " + std::to_string(getpid()) + ", \"communicator\": \"" +
                       communicator_.key().text() + "\", \"key\": \"" + key_text(name.key) +
                       "\", \"group\": \"" + escaped(name.given) + "\", \"call\": \"" + what_() +
                       "\", \"since_ns\": " + std::to_string(since.count()) + ", \"members\": " +
                       list_of(members) + ", \"missing\": " + list_of(missing) + "}\n");
}

} // namespace tracehook::rehearsal::nccl
