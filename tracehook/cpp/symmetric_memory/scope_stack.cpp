#include "symmetric_memory/scope_stack.h"

#include "symmetric_memory/bank.h"

#include <algorithm>
#include <utility>

namespace tracehook::core {

namespace {

thread_local std::vector<ScopeFrame> stack;

} // namespace

void ScopeStack::enter(ScopeFrame scope) {
    stack.push_back(std::move(scope));
    open_.fetch_add(1, std::memory_order_relaxed);
}

std::vector<std::uint64_t> ScopeStack::leave() noexcept {
    if (stack.empty()) {
        return {};
    }
    std::vector<std::uint64_t> touched = std::move(stack.back().touched);
    stack.pop_back();
    open_.fetch_sub(1, std::memory_order_relaxed);
    return touched;
}

const ScopeFrame* ScopeStack::current() noexcept {
    return stack.empty() ? nullptr : &stack.back();
}

bool ScopeStack::in_scope() noexcept {
    return std::ranges::any_of(stack,
                               [](const ScopeFrame& scope) { return scope.source != nullptr; });
}

void ScopeStack::block_allocated(const Bank& bank, int device, std::uintptr_t address) noexcept {
    if (stack.empty() || stack.back().device != device) {
        return;
    }
    if (const auto segment = bank.find(address)) {
        std::vector<std::uint64_t>& touched = stack.back().touched;
        if (std::ranges::find(touched, segment->id) == touched.end()) {
            touched.push_back(segment->id);
        }
    }
}

} // namespace tracehook::core
