#include "nccl/window_guard.h"

#include "nccl/caller.h"
#include "nccl/placement.h"

#include <atomic>
#include <exception>

namespace tracehook::nccl {

namespace {

// Leaked at each change: another thread may be using the former one.
std::atomic<const WindowGuard*> guard{nullptr};

int make_and_log(const WindowRequest& request, const MakeWindow& make) {
    const registrar::InProgress::Call call(
        windows::of(*request.communicator).windows_in_progress());
    const std::uint64_t begin_ns = events::monotonic_ns();
    const int result = make();
    const std::uint64_t now_ns = events::monotonic_ns();
    const bool later = request.comes_later(result);
    const bool is_made = result == kSuccess && !later;
    windows::of(*request.communicator)
        .window_of_others({reinterpret_cast<std::uintptr_t>(request.buffer), request.size,
                           is_made ? *request.window : nullptr, later ? kSuccess : result, now_ns,
                           now_ns - begin_ns},
                          later);
    return result;
}

} // namespace

void set_window_guard(WindowGuard replacement) {
    guard.store(replacement ? new WindowGuard(std::move(replacement)) : nullptr,
                std::memory_order_release);
}

int register_guarded(const WindowRequest& request, const MakeWindow& make) {
    const MakeWindow logged = [&] { return make_and_log(request, make); };
    const WindowGuard* const now = guard.load(std::memory_order_acquire);
    if (now == nullptr || called_by_allocator()) {
        return logged();
    }
    try {
        int result = kSuccess;
        const std::string why = (*now)(request, logged, result);
        return why.empty() ? result : refuse(why);
    } catch (const std::exception& failure) {
        return refuse(failure.what());
    }
}

} // namespace tracehook::nccl
