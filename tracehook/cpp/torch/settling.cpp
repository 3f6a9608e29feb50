#include "torch/settling.h"

#include "windows/scope_stack.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tracehook::torch {

namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 10s;
constexpr auto kForOthers = 5ms;
constexpr std::chrono::microseconds kFirstPause = 20us;
constexpr std::chrono::microseconds kLongestPause = 1ms;

} // namespace

bool settle(const HookLibrary& hook_library, const windows::PendingBlocks& pending,
            int device) noexcept {
    if (windows::ScopeStack::in_scope_on(device)) {
        return true;
    }
    const auto begin = std::chrono::steady_clock::now();
    for (auto pause = kFirstPause; pending.any(device);
         pause = std::min(2 * pause, kLongestPause)) {
        if (!windows::ScopeStack::open_on(device) && hook_library.quiet(device)) {
            hook_library.settle(device);
            if (!pending.any(device)) {
                break;
            }
            if (std::chrono::steady_clock::now() - begin > kPatience) {
                return false;
            }
        } else if (windows::ScopeStack::open().load(std::memory_order_relaxed) == 0 ||
                   std::chrono::steady_clock::now() - begin > kForOthers) {
            break;
        }
        std::this_thread::sleep_for(pause);
    }
    return true;
}

} // namespace tracehook::torch
