#include "rehearsal/values/uncomputed.h"

#include "rehearsal/cuda/device.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace tracehook::rehearsal::values {
namespace {

constexpr size_t kMostRefusals = 5;

bool first_time(const std::string& operation, const char* reason) {
    static std::mutex mutex; // protects `seen`
    static auto* const seen = new std::set<std::pair<std::string, std::string>>;
    const std::lock_guard lock(mutex);
    return seen->emplace(operation, reason).second;
}

Launches*& youngest() {
    static thread_local Launches* launches = nullptr;
    return launches;
}

// It writes nothing that a program reads as a tensor.
constexpr std::string_view kWithoutResult = "at::cuda::spin_kernel";

} // namespace

void note_uncomputed(const std::string& operation, const char* reason) {
    const char* folder = std::getenv("TRACEHOOK_EMU_DIR");
    if (folder == nullptr || !first_time(operation, reason)) {
        return;
    }
    const std::string path = std::string(folder) + "/uncomputed." + std::to_string(getpid());
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) {
        return;
    }
    dprintf(file, "%s %s\n", reason, operation.c_str());
    close(file);
}

void say_refused(const std::string& operation, const std::string& problem) {
    static std::mutex mutex; // protects `said`
    static size_t said = 0;
    {
        const std::lock_guard lock(mutex);
        if (++said > kMostRefusals) {
            return;
        }
    }
    const std::string line = problem.substr(0, problem.find('\n'));
    std::fprintf(stderr,
                 "rehearsal: %s cannot be computed of these values: %s. A device would stop or go "
                 "on with wrong values; the results here are NaN\n",
                 operation.c_str(), line.c_str());
}

Launches::Launches() : before_(youngest()) {
    youngest() = this;
}

Launches::~Launches() {
    youngest() = before_;
}

void Launches::seen(const char* name) {
    if (std::string_view(name) == kWithoutResult) {
        return;
    }
    if (youngest() != nullptr) {
        youngest()->any_ = true;
    } else {
        note_uncomputed(name, "kernel");
    }
}

void follow_launches() {
    emu_set_launch_observer(Launches::seen);
}

} // namespace tracehook::rehearsal::values
