// The windows of one communicator: makes and undoes them, and counts what may use them.
//
// Belongs to the thread inside the communicator's gate, where nothing else is said. The table has a
// mutex of its own, which comes after the one here.
//
// The bank counts a window from before it is made until the library has none: until it was
// deregistered, or, after death, until gone(). While a graph lives that uses windows, or a device
// communicator, none is deregistered at the communicator's end.
#pragma once

#include "registrar/communicator.h"
#include "registrar/live_graphs.h"
#include "windows/bank.h"
#include "windows/windows.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tracehook::windows {

class CommunicatorWindows final : public registrar::Companion {
  public:
    CommunicatorWindows(registrar::Communicator& communicator, Bank& bank) noexcept
        : communicator_(communicator), calls_(communicator.registration_calls()), bank_(bank) {}
    ~CommunicatorWindows() override { drop_window_records(); }

    Windows& table() noexcept { return table_; }
    const Bank& bank() const noexcept { return bank_; }

    // Any thread, any time.
    void log_first_use(const Windows::Lookup& look) noexcept;
    void log_digest() noexcept;
    // Whether NCCL has not yet taken in some call that has its number, other than `own` flights of
    // the thread that wants to know. Exact while a fence is up; else a plain call may begin.
    bool in_flight(std::size_t own) const noexcept;

    const std::shared_ptr<registrar::LiveGraphs>& graphs() const noexcept { return graphs_; }

    // Any thread. Device communicators (ncclDevCommCreate) that the program has. Its kernels may
    // use any window of this communicator through one, at any time, and nobody tells us which:
    // while one lives, tracehook ends no window that the ranks confirmed. A program may copy one,
    // so they are counted and not told apart. ..._begins() before the call that makes one,
    // ..._created() after it. In a group NCCL makes it later; one that then fails counts on, so
    // windows stay for longer than they have to.
    std::size_t device_communicators() const noexcept {
        return device_communicators_.load(std::memory_order_acquire);
    }
    void device_communicator_begins() noexcept;
    void device_communicator_created(int result, std::uint64_t duration_ns) noexcept;
    void device_communicator_destroyed(int result, std::uint64_t duration_ns) noexcept;

    // Any thread. Communicator::refuse(), because the ranks can no longer be level. Calls before
    // number `from` still pass.
    void refuse(const std::string& why, std::uint64_t from = 0) noexcept;

    // Any thread: windows that the program makes and undoes. window_of_others() logs what came of
    // the call (`later`: NCCL has not made it yet), and keeps the window under its handle; from
    // count_window_of_others() on collectives look for it. take_...() before the call that undoes
    // it.
    void window_of_others(const registrar::Observation& seen, bool later) noexcept;
    void count_window_of_others(const void* handle) noexcept;
    Window take_window_of_others(const void* handle) noexcept;
    void log_window_of_others_ended(const registrar::Observation& seen) noexcept;

    // Any thread: logs the window registration that has not come back yet, as register.stalled.
    void log_waiting() noexcept;
    // Any thread: since when a call is in NCCL that registers a window, for status().
    registrar::InProgress& windows_in_progress() noexcept { return windows_in_progress_; }

    // Registers a window on each, in this order, and stops at the first that fails. Each takes
    // until all ranks did the same. They can be used only after confirm_windows();
    // drop_unconfirmed_windows() undoes them instead, and may also be called after death, by any
    // thread. Nothing is done if one of the segments is gone.
    // `capturing`: a stream of this device is being captured now; only noted in the log.
    std::vector<registrar::Outcome> register_windows(const std::vector<PoolSegment>& segments,
                                                     bool capturing = false) noexcept;
    void confirm_windows() noexcept;
    std::size_t drop_unconfirmed_windows() noexcept;
    // One that the program made, and that not all ranks have.
    void undo_window_of_others(const void* handle) noexcept;
    // The windows on these segments (by the bank's id).
    std::size_t deregister_windows(const std::vector<std::uint64_t>& segments) noexcept;

    // NCCL waits, without end, in the call that ends a communicator, until the graphs are gone that
    // use its windows. Logs whether some live.
    bool stays() noexcept override;
    void retire() noexcept override; // deregisters all windows
    void kill() noexcept override { table_.end_fences(); }
    void log_end() noexcept override { log_digest(); }
    void gone() noexcept override; // the library has no windows any more, so their memory may go
    void release_idle() noexcept override { bank_.release_idle(); }

  private:
    bool has_graphs() noexcept;
    void log_window_ended(const Window& window, int result, bool observed,
                          std::uint64_t duration_ns) noexcept;
    registrar::Outcome finish_window(const registrar::Outcome& begun,
                                     const PoolSegment& segment) noexcept;
    std::size_t deregister_these(const std::vector<Window>& windows) noexcept;
    void keep(const Window& window) noexcept;
    std::uint64_t next_ordinal() const noexcept;
    std::vector<Window> take_unconfirmed() noexcept;
    void drop_window_records_if_gone() noexcept;
    void drop_window_records() noexcept;

    registrar::Communicator& communicator_;
    registrar::RegistrationCalls& calls_;
    Bank& bank_;
    const std::shared_ptr<registrar::LiveGraphs> graphs_ =
        std::make_shared<registrar::LiveGraphs>();
    Windows table_;
    mutable std::mutex unconfirmed_mutex_; // comes before Windows::mutex_
    std::vector<Window> unconfirmed_; // count, but are not in the table: made a moment ago, or left
                                      // over by a death
    std::vector<Window> others_;      // windows of others, by unconfirmed_mutex_
    std::vector<Window> stuck_;       // NCCL did not end them, so their memory stays
    std::atomic<std::size_t> device_communicators_{0};
    std::atomic<std::uint64_t> waiting_segment_{0};
    std::atomic<std::uint64_t> waiting_since_{0};
    registrar::InProgress windows_in_progress_;
};

// For a registrar all of whose communicators have their windows in this bank.
inline registrar::MakeCompanion in(Bank& bank) {
    return [&bank](registrar::Communicator& communicator) {
        return std::make_unique<CommunicatorWindows>(communicator, bank);
    };
}

// Of a communicator of such a registrar.
inline CommunicatorWindows& of(const registrar::Communicator& communicator) noexcept {
    return static_cast<CommunicatorWindows&>(communicator.companion());
}
inline Windows& table_of(const registrar::Communicator& communicator) noexcept {
    return of(communicator).table();
}

} // namespace tracehook::windows
