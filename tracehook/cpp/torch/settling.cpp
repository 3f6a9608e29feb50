#include "torch/settling.h"

#include "windows/scope_stack.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace tracehook::torch {

namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 10s;
constexpr auto kForOneScope = 50ms;
constexpr std::chrono::microseconds kFirstPause = 20us;
constexpr std::chrono::microseconds kLongestPause = 1ms;

} // namespace

bool settle(const HookLibrary& hook_library, const windows::PendingBlocks& pending,
            int device) noexcept {
    if (windows::ScopeStack::in_scope_on(device)) {
        return true;
    }
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    auto last_end = begin;
    std::uint32_t left = windows::ScopeStack::left_on(device);
    for (auto pause = kFirstPause; pending.any(device);
         pause = std::min(2 * pause, kLongestPause)) {
        const auto now = Clock::now();
        if (!windows::ScopeStack::open_on(device) && hook_library.quiet(device)) {
            hook_library.settle(device);
            if (!pending.any(device)) {
                break;
            }
            last_end = now;
        } else if (windows::ScopeStack::open().load(std::memory_order_relaxed) == 0) {
            break;
        }
        if (const std::uint32_t latest = windows::ScopeStack::left_on(device); latest != left) {
            left = latest;
            last_end = now;
        }
        if (now - last_end > kForOneScope) {
            break;
        }
        if (now - begin > kPatience) {
            return false;
        }
        std::this_thread::sleep_for(pause);
    }
    return true;
}

} // namespace tracehook::torch
