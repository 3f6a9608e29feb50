// The stacks of all Python threads, in a file beside the log: on request, and when nobody can get
// the GIL for long.
//
// CPython walks stacks without the GIL in one function, which it exports to nobody since 3.13. The
// signal handler of `faulthandler` calls that function. So Python registers this handler for a
// signal that has the system's default; we keep the handler's address, put the default back, and
// call the handler like any function: it is async-signal-safe, so every thread may call it.
//
// Whoever walks the stack of a thread that runs may read memory that is gone. So a thread first
// tries to get the GIL, and has the stacks written with it. If it cannot get the GIL for two
// seconds, code in C holds it, and no stack changes: then they are written without it.
//
// The handler writes into a file in memory, because a file server may be dead; what writes into
// the file beside the log holds neither the GIL nor a lock.
//
// With the stacks go the children of the process: a rank may wait for one, such as a worker of a
// data loader.
//
// SIGTERM, SIGABRT and faults (SIGSEGV) ask for stacks, too, before they end the process
// (process/last_signal.h). A thread that has the GIL then fills the file in memory itself, because
// nobody else gets the GIL.
#include "bindings/bindings.h"
#include "nccl/marks.h"
#include "process/last_signal.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace tracehook::bindings {

namespace {

using namespace std::chrono_literals;
using Handler = void (*)(int);

constexpr auto kLook = 500ms;    // between two looks at the ring
constexpr auto kPatience = 2s;   // for the GIL
constexpr off_t kMost = 1 << 20; // bytes of a file, and of the stacks of one moment
// A program that registers the signal with faulthandler itself would get no handler, because
// faulthandler takes it for registered. So it is one that nothing sends.
constexpr int kUnused = SIGSTKFLT;

struct Watch {
    events::Ring& ring;
    std::string path;
    int buffer; // the file in memory
    ino_t
        inode; // its own: the program may have closed the file, and have another one of the number
    unsigned long main_thread;
    int signal;
    Handler handler;
    std::chrono::nanoseconds silence; // of the log's thread: perhaps nobody has the GIL
    std::mutex mutex;                 // the rest, and the buffer; nothing is locked inside it
    std::condition_variable changed;
    bool over = false;
    pid_t owner = getpid(); // a forked child has no thread that answers
    std::atomic<bool> is_filled{false};
};

// Never destroyed: its thread may still be there while the process ends.
std::atomic<Watch*> current{nullptr};

std::uint64_t in_ns(std::chrono::nanoseconds time) {
    return static_cast<std::uint64_t>(time.count());
}

bool is_default(int signal) {
    struct sigaction now{};
    return sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
           now.sa_handler == SIG_DFL;
}

void set_default(int signal) {
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, nullptr);
}

// With Watch::mutex.
void fill_buffer(const Watch& watch) {
    struct stat now{};
    if (fstat(watch.buffer, &now) == 0 && now.st_ino == watch.inode &&
        ftruncate(watch.buffer, 0) == 0 && lseek(watch.buffer, 0, SEEK_SET) == 0) {
        watch.handler(watch.signal);
    }
}

// One line for each child of this process: its number, its state as /proc has it, its name. Without
// the GIL and any lock.
std::string children() {
    std::string said;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), &closedir);
    while (const dirent* const entry = folder ? readdir(folder.get()) : nullptr) {
        const std::string path = "/proc/" + std::string(entry->d_name) + "/stat";
        const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), &fclose);
        int pid = 0;
        int parent = 0;
        char state = 0;
        std::array<char, 64> name{};
        if (file &&
            fscanf(file.get(), "%d (%63[^)]) %c %d", &pid, name.data(), &state, &parent) == 4 &&
            parent == getpid()) {
            said += "child " + std::to_string(pid) + " " + state + " " + name.data() + "\n";
        }
    }
    return said;
}

// Without the GIL and any lock; may wait for a file server. Only the thread of `watch` calls it.
void save(const Watch& watch, std::uint64_t at_ns) {
    std::array<char, 128> first{};
    std::snprintf(first.data(), first.size(), "tracehook stacks t_ns=%llu main=0x%016lx\n",
                  static_cast<unsigned long long>(at_ns), watch.main_thread);
    const std::string head = first.data() + children();
    const int file =
        open(watch.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file < 0) {
        return;
    }
    struct stat now{};
    const off_t size = std::min(lseek(watch.buffer, 0, SEEK_END), kMost / 2);
    bool goes = fstat(file, &now) == 0;
    if (goes && now.st_size + size > kMost) {
        goes = ftruncate(file, 0) == 0; // the newest stacks say most
    }
    goes = goes && write(file, head.data(), head.size()) == static_cast<ssize_t>(head.size());
    std::array<char, 4096> piece{};
    for (off_t done = 0; goes && done < size;) {
        const auto wanted =
            std::min<std::size_t>(piece.size(), static_cast<std::size_t>(size - done));
        const ssize_t got = pread(watch.buffer, piece.data(), wanted, done);
        goes = got > 0 && write(file, piece.data(), static_cast<std::size_t>(got)) == got;
        done += got;
    }
    goes = goes && write(file, "\n", 1) == 1;
    close(file);
}

// On the thread of `watch`. Where nobody asked, the stacks matter only if nobody gets the GIL.
void answer(Watch& watch, bool was_asked) {
    if (watch.is_filled.exchange(false)) {
        save(watch, events::monotonic_ns());
        return;
    }
    const auto filled = std::make_shared<bool>(false); // with Watch::mutex
    // Detached: if code in C never gives the GIL back, it waits for ever.
    std::thread([&watch, filled, was_asked] {
        if (is_finalizing()) {
            return;
        }
        const PyGILState_STATE state = PyGILState_Ensure();
        {
            const std::lock_guard guard(watch.mutex);
            if (!*filled && !watch.over && was_asked) {
                fill_buffer(watch);
            }
            *filled = true;
            watch.changed.notify_all();
        }
        PyGILState_Release(state);
    }).detach();
    std::unique_lock lock(watch.mutex);
    const auto is_done = [&] { return *filled || watch.over; };
    const bool had_gil = watch.changed.wait_for(lock, kPatience, is_done);
    if (watch.over || (had_gil && !was_asked)) {
        return;
    }
    const std::uint64_t now_ns = events::monotonic_ns();
    if (!had_gil) {
        watch.ring.calls().look(watch.ring.looked_ns()); // the log's thread cannot, since then
        fill_buffer(watch);
        *filled = true;
    }
    lock.unlock();
    save(watch, now_ns);
}

void run(Watch& watch) {
    std::uint64_t before = events::monotonic_ns();
    std::uint64_t since = before; // since when the log's thread could have looked
    bool was_silent = false;
    nccl::look_at_marks(); // from now on calls are marked
    while (true) {
        {
            std::unique_lock lock(watch.mutex);
            if (watch.changed.wait_for(lock, kLook, [&] { return watch.over; })) {
                return;
            }
        }
        nccl::look_at_marks();
        const std::uint64_t now = events::monotonic_ns();
        since = now - before > 4 * in_ns(kLook) ? now : since; // the whole process stood still
        before = now;
        const std::uint64_t looked = std::max(since, watch.ring.looked_ns());
        const bool is_silent = now > looked && now - looked > in_ns(watch.silence);
        const std::uint32_t asked = watch.ring.stacks_asked();
        const bool was_asked = asked != watch.ring.stacks_told();
        if (was_asked || (is_silent && !was_silent)) {
            try {
                answer(watch, was_asked);
            } catch (const std::system_error&) { // no thread more: the next look tries again
            }
            watch.ring.tell_stacks(asked);
            before = events::monotonic_ns();
        }
        was_silent = is_silent;
    }
}

// On the thread that a signal ends, or that is about to report a failure: the stacks of this moment
// count. The file is written by the thread of `watch`: a dead file server must not keep the
// process.
void ask_and_wait() noexcept {
    constexpr timespec kPause{0, 10'000'000};
    constexpr int kPauses = 300; // longer than kLook and kPatience: another thread may keep the GIL
    Watch* const watch = current.load();
    if (watch == nullptr || watch->owner != getpid()) {
        return;
    }
    if (PyGILState_Check() == 1 && watch->mutex.try_lock()) {
        fill_buffer(*watch);
        watch->is_filled.store(true);
        watch->mutex.unlock();
    }
    watch->ring.ask_stacks();
    for (int i = 0; i < kPauses && watch->ring.stacks_asked() != watch->ring.stacks_told(); ++i) {
        nanosleep(&kPause, nullptr);
    }
}

// The handler that `register_handler` sets for a signal that nobody uses; null if there is none.
std::pair<int, Handler> borrow_handler(const py::function& register_handler) {
    int signal = kUnused;
    if (!is_default(signal)) {
        signal = SIGRTMAX;
    }
    while (signal > SIGRTMIN && !is_default(signal)) {
        --signal;
    }
    if (!is_default(signal)) {
        return {signal, nullptr};
    }
    register_handler(signal);
    struct sigaction set{};
    sigaction(signal, nullptr, &set);
    set_default(signal);
    const bool is_plain =
        (set.sa_flags & SA_SIGINFO) == 0 && set.sa_handler != SIG_DFL && set.sa_handler != SIG_IGN;
    return {signal, is_plain ? set.sa_handler : nullptr};
}

bool watch_stacks(const std::string& path, int buffer, unsigned long main_thread, double seconds,
                  const py::function& register_handler) {
    const auto [signal, handler] = borrow_handler(register_handler);
    if (handler == nullptr) {
        return false;
    }
    const auto silence = std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
    struct stat now{};
    if (fstat(buffer, &now) != 0) {
        return false;
    }
    auto* const watch = new Watch{process().ring(), path,    buffer,  now.st_ino, main_thread,
                                  signal,           handler, silence, {},         {}};
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // the program's signals are for its own threads
    bool begun = true;
    try {
        std::thread([watch] { run(*watch); }).detach();
    } catch (const std::system_error&) {
        begun = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    current.store(begun ? watch : nullptr);
    process::set_last_act(&ask_and_wait);
    return begun;
}

void end_stacks() {
    if (Watch* const watch = current.exchange(nullptr)) {
        const std::lock_guard guard(watch->mutex);
        watch->over = true;
        watch->changed.notify_all();
    }
}

} // namespace

void bind_stacks(py::module_& module) {
    module.def(
        "watch_stacks", &watch_stacks, py::arg("path"), py::arg("buffer"), py::arg("main_thread"),
        py::arg("silence"), py::arg("register"),
        "False if there can be no stacks. After `silence` seconds without a look of the log's "
        "thread they are written if nobody gets the GIL. `register` has faulthandler handle a "
        "signal");
    module.def("ask_stacks", [] { process().ring().ask_stacks(); });
    module.def(
        "stacks_witness", [] { return reinterpret_cast<std::uintptr_t>(&ask_and_wait); },
        "Address of a function without arguments that has the stacks written, and waits for that; "
        "any thread");
    // Before the interpreter ends: its threads' stacks go then.
    module.def("end_stacks", &end_stacks, NoGil());
}

} // namespace tracehook::bindings
