#include "nccl/coll_config.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace tracehook::nccl {

namespace {

// Never destroyed: threads may still make calls at exit.
struct Known {
    std::mutex mutex;
    std::unordered_map<std::uint32_t, std::vector<std::string>> settings; // by number

    static Known& instance() {
        static auto* const all = new Known;
        return *all;
    }
};

// With the layout of 2.31 at least, and made by NCCL's initializer.
bool is_readable(const CollConfig& config) noexcept {
    return config.magic == kConfigMagic && config.size >= offsetof(CollConfig, launch_completion);
}

bool has_event(const CollConfig& config) noexcept {
    return config.size >= sizeof(CollConfig) && config.launch_completion != nullptr;
}

std::string_view algorithms(const CollConfig& config) noexcept {
    return config.algorithms != nullptr ? config.algorithms : "";
}

std::uint32_t hash(const CollConfig& config) noexcept {
    std::uint64_t state = 0xcbf29ce484222325ull; // FNV-1a, which is the same in every process
    const auto mix = [&state](std::uint64_t value) {
        state = (state ^ value) * 0x100000001b3ull;
        state ^= state >> 32;
    };
    for (const int value :
         {config.min_ctas, config.max_ctas, config.nvls_ctas, config.cga_cluster_size,
          config.force_algorithms, config.cta_policy, static_cast<int>(has_event(config))}) {
        mix(static_cast<std::uint32_t>(value));
    }
    for (const char letter : algorithms(config)) {
        mix(static_cast<unsigned char>(letter));
    }
    return std::max(static_cast<std::uint32_t>(state), 1U);
}

std::string number(const char* name, int value) {
    return std::string(name) +
           (value == kConfigUndefined ? " not set" : " " + std::to_string(value));
}

std::vector<std::string> settings(const CollConfig& config) {
    const std::string_view chosen = algorithms(config);
    return {
        number("minCTAs", config.min_ctas),
        number("maxCTAs", config.max_ctas),
        number("nvlsCTAs", config.nvls_ctas),
        number("cgaClusterSize", config.cga_cluster_size),
        "algSelection " + (chosen.empty() ? "not set" : std::string(chosen)),
        number("forceAlgSelection", config.force_algorithms),
        number("CTAPolicy", config.cta_policy),
        std::string("launchCompletionEvent ") + (has_event(config) ? "set" : "not set"),
    };
}

} // namespace

std::uint32_t number_of(const CollConfig* config) noexcept {
    if (config == nullptr || !is_readable(*config)) {
        return 0;
    }
    const std::uint32_t found = hash(*config);
    try {
        Known& known = Known::instance();
        const std::lock_guard guard(known.mutex);
        if (!known.settings.contains(found)) {
            known.settings.emplace(found, settings(*config));
        }
    } catch (...) {
        return found; // no memory: the ranks compare what is left
    }
    return found;
}

std::vector<std::string> settings_of(std::uint32_t number) {
    Known& known = Known::instance();
    const std::lock_guard guard(known.mutex);
    const auto found = known.settings.find(number);
    return found != known.settings.end() ? found->second : std::vector<std::string>();
}

} // namespace tracehook::nccl
