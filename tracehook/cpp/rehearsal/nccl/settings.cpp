#include "settings.h"

#include "rehearsal/cuda/gpu.h"
#include "rehearsal/cuda/identity.h"

#include <cstdlib>
#include <filesystem>
#include <functional>

#include <sys/stat.h>
#include <unistd.h>

namespace tracehook::rehearsal::nccl {
namespace {

std::string text(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

int number(const char* name, int otherwise) {
    const std::string value = text(name);
    char* end = nullptr;
    const long parsed = std::strtol(value.c_str(), &end, 10);
    return value.empty() || *end != '\0' ? otherwise : static_cast<int>(parsed);
}

std::string directory_for_meeting() {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    const std::string name = "tracehook-emulated-" + std::to_string(getuid());
    return (error ? std::filesystem::path("/tmp") : parent) / name;
}

Settings read() {
    Settings settings;
    settings.directory = text("TRACEHOOK_EMU_DIR");
    settings.records = !settings.directory.empty();
    if (!settings.records) {
        settings.directory = directory_for_meeting();
    }
    const std::string rules = text("TRACEHOOK_EMU_RULES");
    settings.rules = rules == "abort" ? RuleMode::kAbort
                     : rules == "off" ? RuleMode::kOff
                                      : RuleMode::kReport;
    settings.strict_uniformity = text("TRACEHOOK_EMU_STRICT_L7") != "0";
    settings.reuse_handles = text("TRACEHOOK_EMU_HANDLE_REUSE") != "0";
    settings.version = number("TRACEHOOK_EMU_NCCL_VERSION", 22809);
    settings.windows =
        text("TRACEHOOK_EMU_WINDOWS") == "null" ? WindowMode::kNull : WindowMode::kOn;
    settings.window_timeout = std::chrono::seconds(number("TRACEHOOK_EMU_WINDOW_TIMEOUT", 60));
    settings.local_register = number("NCCL_LOCAL_REGISTER", 1) != 0;
    settings.peer_to_peer = number("NCCL_P2P_DISABLE", 0) != 1 && cuda::gpu().peers;
    settings.legacy_register = number("NCCL_LEGACY_CUDA_REGISTER", 0) != 0;
    settings.rank = number("RANK", -1);
    settings.world = number("WORLD_SIZE", 0);
    settings.host =
        std::hash<std::string>()(text("NCCL_HOSTID") + "|" + text("CUDA_VISIBLE_DEVICES"));
    // One fabric joins the devices of all hosts.
    const bool fabric = cuda::has_fabric() && number("NCCL_MNNVL_ENABLE", 2) != 0;
    settings.machine = std::hash<std::string>()(fabric ? "" : text("NCCL_HOSTID"));
    return settings;
}

} // namespace

const Settings& settings() {
    // Never destroyed: threads of the job may still ask while the process ends.
    static const Settings& kept = *new Settings(read());
    return kept;
}

bool graph_register() {
    static const bool is_on = number("NCCL_GRAPH_REGISTER", 1) != 0;
    return is_on;
}

bool ensure_directory() {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(settings().directory).parent_path(),
                                        error);
    const char* path = settings().directory.c_str();
    return mkdir(path, 0700) == 0 || access(path, W_OK | X_OK) == 0;
}

std::FILE* open_record(const char* kind) {
    if (!settings().records || !ensure_directory()) {
        return nullptr;
    }
    const std::string name = std::string(kind) + "." + std::to_string(getpid()) + ".jsonl";
    return std::fopen((settings().directory + "/" + name).c_str(), "ae");
}

bool has(Trait trait) {
    return tracehook::nccl::has(trait, settings().version);
}

} // namespace tracehook::rehearsal::nccl
