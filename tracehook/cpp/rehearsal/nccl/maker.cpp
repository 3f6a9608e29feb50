#include "maker.h"

#include "settings.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <link.h>
#include <string>
#include <string_view>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {

namespace {

bool has_torch() {
    const auto is_torch = [](dl_phdr_info* object, std::size_t, void*) {
        const std::string_view path(object->dlpi_name == nullptr ? "" : object->dlpi_name);
        return path.ends_with("/libtorch_python.so") ? 1 : 0;
    };
    return dl_iterate_phdr(is_torch, nullptr) != 0;
}

std::string_view variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

} // namespace

void note_maker() {
    static std::atomic<pid_t> noted{0}; // a forked child is another process
    const pid_t pid = getpid();
    const std::string_view hook = variable("SYMM_REGISTER_HOOK");
    const std::string_view log = variable("SYMM_REGISTER_LOG");
    if (noted.load(std::memory_order_relaxed) == pid || hook.empty() || hook == "0" ||
        log.empty() || !has_torch() || !settings().records || !ensure_directory()) {
        return;
    }
    const std::string path = settings().directory + "/maker." + std::to_string(pid);
    if (std::FILE* file = std::fopen(path.c_str(), "we"); file != nullptr) {
        std::fputs(std::string(log).c_str(), file);
        std::fclose(file);
        noted.store(pid, std::memory_order_relaxed);
    }
}

} // namespace tracehook::rehearsal::nccl
