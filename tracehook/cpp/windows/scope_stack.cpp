#include "windows/scope_stack.h"

#include "events/of_thread.h"
#include "windows/bank.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tracehook::windows {

namespace {

std::vector<ScopeFrame>& frames() noexcept {
    return events::OfThread<std::vector<ScopeFrame>>::mine();
}

void drop_abandoned() noexcept {
    std::vector<ScopeFrame>& stack = frames();
    while (!stack.empty() && stack.back().is_over()) {
        stack.pop_back();
    }
}

} // namespace

void ScopeStack::enter(ScopeFrame scope) {
    std::vector<ScopeFrame>& stack = frames();
    const int device = scope.device;
    stack.push_back(std::move(scope));
    count(device, 1);
}

std::vector<std::uint64_t> ScopeStack::leave() noexcept {
    std::vector<ScopeFrame>& stack = frames();
    drop_abandoned();
    if (stack.empty()) {
        return {};
    }
    std::vector<std::uint64_t> touched = std::move(stack.back().touched);
    const int device = stack.back().device;
    stack.pop_back();
    count_end(device);
    return touched;
}

bool ScopeStack::take_out(const std::function<bool(const ScopeFrame&)>& wanted) {
    std::vector<ScopeFrame>& stack = frames();
    std::erase_if(stack, [](const ScopeFrame& scope) { return scope.is_over(); });
    const auto found = std::find_if(stack.rbegin(), stack.rend(), wanted);
    if (found == stack.rend()) {
        return false;
    }
    const int device = found->device;
    stack.erase(std::next(found).base());
    count_end(device);
    return true;
}

std::uint32_t ScopeStack::owner_of(const void* source) noexcept {
    const std::vector<ScopeFrame>& stack = frames();
    const auto found = std::ranges::find(stack, source, &ScopeFrame::source);
    return found != stack.end() ? found->owner : 0;
}

const ScopeFrame* ScopeStack::current() noexcept {
    std::vector<ScopeFrame>& stack = frames();
    drop_abandoned();
    return stack.empty() ? nullptr : &stack.back();
}

bool ScopeStack::in_scope() noexcept {
    return std::ranges::any_of(frames(), [](const ScopeFrame& scope) {
        return scope.source != nullptr && !scope.is_over();
    });
}

bool ScopeStack::in_scope_on(int device) noexcept {
    return std::ranges::any_of(frames(), [device](const ScopeFrame& scope) {
        return scope.source != nullptr && scope.device == device && !scope.is_over();
    });
}

void ScopeStack::block_allocated(const Bank& bank, int device, std::uintptr_t address) noexcept {
    std::vector<ScopeFrame>& stack = frames();
    drop_abandoned();
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

} // namespace tracehook::windows
