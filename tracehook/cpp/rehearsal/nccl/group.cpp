#include "group.h"

#include "calls.h"
#include "handles.h"
#include "rehearsal/cuda/device.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace tracehook::rehearsal::nccl {

namespace {

struct Group {
    int depth = 0;
    Result failure = kSuccess;
    std::vector<Request> requests;
    std::vector<WindowRequest> windows;
    std::vector<Job> jobs;
};

thread_local Group group;

// What is no child of another communicator has its handle before the group ends. NCCL never writes
// to the caller's variable later, and callers return from it (nccl4py).
void give_handle(Job& job) {
    *std::exchange(job.out, nullptr) = open_handle(job.child);
}

void take_handle_back(const Job& job) {
    if (job.out == nullptr) {
        close_handle(*job.child, "ncclGroupEnd");
    }
}

Result carry_out_blocking(Job& job) {
    std::shared_ptr<Communicator> child;
    const Result result = job.work(child);
    const bool is_made = result == kSuccess && child != nullptr;
    if (is_made) {
        child->become(State::kReady);
    }
    if (job.out != nullptr) {
        *job.out = is_made ? open_handle(child) : nullptr;
    } else if (!is_made) {
        take_handle_back(job);
    }
    return result;
}

void carry_out_behind(const Job& job) {
    const auto begin = std::chrono::steady_clock::now();
    std::shared_ptr<Communicator> child = job.child;
    const Result result = job.work(child);
    if (child != nullptr) {
        while (std::chrono::steady_clock::now() - begin < job.holding && !child->stopped()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        if (result != kSuccess) {
            child->fail(result, last_error());
        }
        if (!child->stopped()) {
            child->become(State::kReady);
        }
    }
    if (job.parent != nullptr) {
        job.parent->end_background();
    }
}

// A thread of its own, which nobody waits for: it gives up when the communicator is aborted or the
// process ends.
void begin_behind(Job job) {
    if (job.out != nullptr) {
        *job.out = job.child == nullptr ? nullptr : open_handle(job.child);
    }
    if (job.parent != nullptr) {
        job.parent->begin_background();
    }
    const int device = emu_current_device();
    std::thread([job = std::move(job), device] {
        emu_set_current_device(device);
        carry_out_behind(job);
    }).detach();
}

// Each waits for other ranks, which may be further jobs of this very group: all at once.
Result carry_out(std::vector<Job> jobs) {
    std::vector<Result> results(jobs.size(), kSuccess);
    std::vector<std::string> texts(jobs.size());
    const int device = emu_current_device();
    const auto carry_out_one = [&](std::size_t index) {
        results[index] = carry_out_blocking(jobs[index]);
        texts[index] = results[index] == kSuccess ? "" : last_error();
    };
    std::vector<std::jthread> threads;
    for (std::size_t index = 0; index < jobs.size(); ++index) {
        if (!jobs[index].blocking) {
            begin_behind(std::move(jobs[index]));
            results[index] = kInProgress;
        } else if (jobs.size() == 1) {
            carry_out_one(index);
        } else {
            threads.emplace_back([&, index] {
                emu_set_current_device(device);
                carry_out_one(index);
            });
        }
    }
    threads.clear(); // joins them
    Result total = kSuccess;
    for (std::size_t index = 0; index < jobs.size(); ++index) {
        if (results[index] != kSuccess && (total == kSuccess || total == kInProgress)) {
            total =
                results[index] == kInProgress ? kInProgress : failed(results[index], texts[index]);
        }
    }
    return total;
}

// Windows, and the operations of the same group, which may use them. If one of the communicators is
// non-blocking, on a thread of its own, during which they are in progress.
Result carry_out(const char* call, std::vector<WindowRequest> windows,
                 std::vector<Request> requests) {
    if (std::ranges::all_of(
            windows, [](const WindowRequest& window) { return window.communicator->blocking(); })) {
        const Result result = register_windows(call, std::move(windows), true);
        if (result == kSuccess) {
            launch(call, std::move(requests));
        }
        return result;
    }
    for (const WindowRequest& window : windows) {
        window.communicator->begin_background();
    }
    const int device = emu_current_device();
    std::thread([=, windows = std::move(windows), requests = std::move(requests)]() mutable {
        emu_set_current_device(device);
        std::this_thread::sleep_for(windows.front().holding);
        const Result result = register_windows(call, windows, false);
        if (result == kSuccess) {
            launch(call, std::move(requests));
        }
        for (const WindowRequest& window : windows) {
            if (result != kSuccess) {
                window.communicator->fail(result, last_error());
            }
            window.communicator->end_background();
        }
    }).detach();
    return kInProgress;
}

} // namespace

void group_start() {
    ++group.depth;
}

Result group_end(const char* call, bool launches) {
    if (group.depth == 0) {
        return failed(kInvalidUsage, std::string(call) + ": there is no ncclGroupStart before it");
    }
    if (--group.depth > 0) {
        return kSuccess;
    }
    Group ended = std::exchange(group, Group{});
    const auto give_up = [&ended](Result result) {
        // NCCL leaves them queued, to be carried out when nobody expects it.
        for (const WindowRequest& window : ended.windows) {
            window.communicator->windows().poison();
        }
        std::ranges::for_each(ended.jobs, take_handle_back);
        return result;
    };
    if (ended.failure != kSuccess) {
        return give_up(ended.failure);
    }
    const Result result = carry_out(std::exchange(ended.jobs, {}));
    if (result != kSuccess && result != kInProgress) {
        return give_up(result);
    }
    if (!launches) {
        return result;
    }
    const Result second = carry_out(call, std::move(ended.windows), std::move(ended.requests));
    return second == kSuccess ? result : second;
}

Result submit(const char* call, Request request) {
    if (group.depth > 0) {
        group.requests.push_back(std::move(request));
    } else {
        launch(call, {std::move(request)});
    }
    return kSuccess;
}

Result submit(const char* call, WindowRequest request) {
    if (group.depth > 0) {
        group.windows.push_back(std::move(request));
        return kSuccess;
    }
    return carry_out(call, {std::move(request)}, {});
}

Result submit(Job job) {
    if (group.depth > 0) {
        if (job.parent == nullptr) {
            give_handle(job);
        }
        group.jobs.push_back(std::move(job));
        return kSuccess;
    }
    std::vector<Job> jobs;
    jobs.push_back(std::move(job));
    return carry_out(std::move(jobs));
}

Result note(Result result) {
    if (group.depth > 0 && result != kSuccess && result != kInProgress &&
        group.failure == kSuccess) {
        group.failure = result;
    }
    return result;
}

} // namespace tracehook::rehearsal::nccl
