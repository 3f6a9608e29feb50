// Asks Python (symmetric_memory/guard.py) whether a window that the program registers may be made.
//
// A thread of its own asks, because the program's thread may hold a lock that somebody wants who
// holds the GIL: it must not wait for the GIL without end. If Python is not free in time, the call
// is refused, and the other ranks find this one missing: to go on alone would be a wait in NCCL for
// ranks that refuse. In between Python has the call made. The program's thread makes it, because
// NCCL's groups and the current device belong to that thread.
#include "nccl/window_guard.h"

#include "bindings/bindings.h"
#include "nccl/api.h"
#include "nccl/group.h"
#include "nccl/traits.h"
#include "process/symmetric_memory.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace tracehook::bindings {

namespace {

// How long the program's thread waits for the GIL.
std::atomic<double> seconds_for_python{0};
// SYMM_REGISTER_GUARD=on. Python knows that itself.
std::atomic<bool> refuses{true};

// Between the program's thread and the one that asks.
struct Conversation {
    enum class State { kAsked, kTaken, kMake, kMade, kDone, kAbandoned };

    std::mutex mutex;
    std::condition_variable changed;
    State state = State::kAsked;
    int made = 0; // NCCL's answer
    std::optional<std::uintptr_t>
        handle; // of the window; 0: NCCL gave none; absent: it comes later
    std::string why;
    int result = 0;

    using Lock = std::unique_lock<std::mutex>;
    void move_to(State next) {
        state = next;
        changed.notify_all();
    }
};
using State = Conversation::State;

// One line on stderr for what symmetric_memory/guard.py cannot say itself: whoever called seldom
// shows NCCL's last error.
std::string refused(std::string why) {
    const std::string line = why + '\n';
    static_cast<void>(
        !write(STDERR_FILENO, line.data(), line.size())); // a closed stderr: no matter
    return why;
}

std::pair<int, std::optional<std::uintptr_t>> have_made(Conversation& talk) {
    Conversation::Lock lock(talk.mutex);
    talk.move_to(State::kMake);
    talk.changed.wait(lock, [&] { return talk.state == State::kMade; });
    return {talk.made, talk.handle};
}

// With the GIL.
std::pair<std::string, int> answer_of_python(Conversation& talk,
                                             const registrar::CommunicatorPtr& communicator,
                                             std::size_t size, int flags, bool loses_capture,
                                             std::size_t flights) {
    try {
        const py::cpp_function make([&talk] {
            const py::gil_scoped_release release;
            return have_made(talk);
        });
        return py::module_::import("tracehook.symmetric_memory.guard")
            .attr("register")(process::BoundCommunicator(communicator), size, flags, loses_capture,
                              flights, make)
            .cast<std::pair<std::string, int>>();
    } catch (const py::error_already_set& failure) {
        return {refused(std::string("tracehook: ") + failure.what()), 0};
    }
}

void ask(const std::shared_ptr<Conversation>& talk, const registrar::CommunicatorPtr& communicator,
         std::size_t size, int flags, bool loses_capture, std::size_t flights) {
    const py::gil_scoped_acquire gil;
    {
        const Conversation::Lock lock(talk->mutex);
        if (talk->state == State::kAbandoned) {
            return;
        }
        talk->move_to(State::kTaken);
    }
    auto [why, result] = answer_of_python(*talk, communicator, size, flags, loses_capture, flights);
    const Conversation::Lock lock(talk->mutex);
    talk->why = std::move(why);
    talk->result = result;
    talk->move_to(State::kDone);
}

// On the program's thread, whose current stream is meant. Without the hook library nobody knows it.
bool loses_capture(const registrar::Communicator& communicator) {
    return process().attached() && !nccl::has(nccl::Trait::kRegistersInCapture, nccl::version()) &&
           process().hook_library().capturing(communicator.identity().device);
}

// The placement check takes the nearest window that starts before a buffer, as NCCL does: one
// inside of ours would hide from it the memory behind. Only we can refuse it; NCCL does not look.
std::string what_is_around(const nccl::WindowRequest& request) {
    registrar::Communicator& communicator = *request.communicator;
    const auto own = windows::table_of(communicator)
                         .own_at(reinterpret_cast<std::uintptr_t>(request.buffer), request.size);
    if (!own) {
        return "";
    }
    std::array<char, 300> line{};
    std::snprintf(line.data(), line.size(),
                  "tracehook: communicator %016llx: the program registers a window of %zu bytes in "
                  "memory of a scope, which lies in window %u of tracehook already, and NCCL "
                  "allows no window in another one; ",
                  static_cast<unsigned long long>(communicator.identity().key), request.size,
                  own->ordinal);
    return line.data();
}

std::string ask_guard(const nccl::WindowRequest& request, const nccl::MakeWindow& make,
                      int& result) {
    if (Py_IsInitialized() == 0 || is_finalizing() || !process().registrar().registering()) {
        result = make();
        return "";
    }
    if (const std::string why = what_is_around(request); !why.empty()) {
        if (refuses.load()) {
            return refused(why + "nothing was registered. Use tensors of a scope as they are, or "
                                 "register memory that was made outside of scopes");
        }
        refused(why + "registering all the same (SYMM_REGISTER_GUARD=watch)");
    }
    std::optional<py::gil_scoped_release> release;
    if (PyGILState_Check() == 1) {
        release.emplace();
    }
    windows::table_of(*request.communicator)
        .note_caller(); // here: the asking thread makes no calls
    const auto talk = std::make_shared<Conversation>();
    std::thread(ask, talk, request.communicator, request.size, request.flags,
                loses_capture(*request.communicator),
                nccl::ThreadGroup::mine().flights(*request.communicator))
        .detach();
    Conversation::Lock lock(talk->mutex);
    const std::chrono::duration<double> patience(seconds_for_python.load());
    if (!talk->changed.wait_for(lock, patience, [&] { return talk->state != State::kAsked; })) {
        talk->move_to(State::kAbandoned);
        return refused(
            "tracehook: the ranks could not compare this window, because another thread of this "
            "process held the interpreter for too long. `tracehook stacks DIR` names its line; or "
            "raise "
            "SYMM_REGISTER_TIMEOUT");
    }
    while (talk->state != State::kDone) {
        if (talk->state == State::kMake) {
            lock.unlock();
            const int made = make();
            lock.lock();
            talk->made = made;
            if (!request.comes_later(made)) {
                talk->handle =
                    made == nccl::kSuccess ? reinterpret_cast<std::uintptr_t>(*request.window) : 0;
            }
            talk->move_to(State::kMade);
        }
        talk->changed.wait(
            lock, [&] { return talk->state == State::kMake || talk->state == State::kDone; });
    }
    result = talk->result;
    return talk->why;
}

} // namespace

void bind_window_guard(py::module_& module) {
    // 0 seconds: off.
    module.def("set_window_guard", [](double seconds, bool refuse) {
        seconds_for_python.store(seconds);
        refuses.store(refuse);
        nccl::set_window_guard(seconds > 0 ? nccl::WindowGuard(&ask_guard) : nccl::WindowGuard());
    });
}

} // namespace tracehook::bindings
