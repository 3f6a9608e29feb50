// Kernels of torch by their names, and who hears of those that the host does not compute.
#include "device.h"
#include "kernel.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <cxxabi.h>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr std::string_view kAnonymous = "(anonymous namespace)::";

// Tens of thousands come while torch is loaded, and few are ever looked for.
using Named = std::pair<const void*, const char*>;
struct Names {
    std::mutex mutex; // protects all; nothing is locked while it is held
    std::vector<Named> all;
};

// The first of them for which that holds; two nulls if there is none.
template <typename Holds> Named first_named(Holds&& holds) {
    Names& names = leaked<Names>();
    const std::lock_guard lock(names.mutex);
    const auto found = std::ranges::find_if(names.all, holds);
    return found == names.all.end() ? Named{} : *found;
}

std::atomic<void (*)(const char*)> launch_observer{nullptr};
constinit thread_local int host_computes = 0;

} // namespace

bool is_spin_kernel(const void* function) {
    constexpr auto spins = [](const auto& each) {
        return std::string_view(each.second).find("spin_kernel") != std::string_view::npos;
    };
    static const void* const known = first_named(spins).first; // torch is loaded: it launches
    return function == known;
}

void name_kernel_of_torch(const void* function, const char* name) {
    Names& names = leaked<Names>();
    const std::lock_guard lock(names.mutex);
    names.all.emplace_back(function, name);
}

const char* kernel_of_torch(const void* function) {
    return first_named([&](const auto& each) { return each.first == function; }).second;
}

std::string readable(const char* name) {
    int status = 0;
    char* const whole = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    if (whole == nullptr) {
        return name;
    }
    std::string text = whole;
    std::free(whole);
    for (size_t at = text.find(kAnonymous); at != text.npos; at = text.find(kAnonymous)) {
        text.erase(at, kAnonymous.size());
    }
    text.erase(std::min(text.find_first_of("<("), text.size()));
    text.erase(0, text.rfind(' ') + 1);
    return text.empty() ? name : text;
}

bool host_computes_now() {
    return host_computes > 0;
}

bool somebody_hears_of_launches() {
    return host_computes == 0 && launch_observer.load(std::memory_order_relaxed) != nullptr;
}

void tell_of_launch(const char* name) {
    if (somebody_hears_of_launches()) {
        launch_observer.load(std::memory_order_acquire)(name);
    }
}

EMU_EXPORT void emu_host_computes(int change) {
    host_computes += change;
}

EMU_EXPORT void emu_set_launch_observer(void (*observer)(const char* name)) {
    launch_observer.store(observer, std::memory_order_release);
}

} // namespace tracehook::rehearsal::cuda
