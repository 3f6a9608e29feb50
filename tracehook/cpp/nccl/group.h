// What the calling thread has done since its outermost ncclGroupStart.
//
// Inside a group NCCL only notes down what is asked for; the work (and the look at the registration
// cache, and the writing of new handles) happens in the outermost ncclGroupEnd. Thread-local, like
// NCCL's own groups: no lock.
#pragma once

#include "events/of_thread.h"
#include "nccl/birth.h"
#include "registrar/registrar.h"
#include "windows/communicator_windows.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tracehook::nccl {

// The call that ends a communicator: what NCCL has of it is gone when this is.
class Ending {
  public:
    enum class How : std::uint8_t { kDestroy, kAbort };
    Ending(registrar::Registrar& registrar, Comm communicator, How how) noexcept
        : registrar_(registrar), communicator_(communicator) {
        if (how == How::kAbort) {
            abort_.reset(new registrar::Registrar::Ending(registrar.kill(communicator)));
        } else {
            registrar.retire(communicator);
        }
    }
    ~Ending() { registrar_.ended(communicator_); }
    // The call returned: no free waits for it any longer. What is buried waits for the end.
    void returned() noexcept { abort_.reset(); }
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;

  private:
    registrar::Registrar& registrar_;
    const Comm communicator_;
    std::unique_ptr<registrar::Registrar::Ending> abort_; // goes after ended()
};

class ThreadGroup {
  public:
    static ThreadGroup& mine() noexcept { return events::OfThread<ThreadGroup>::mine(); }
    ThreadGroup() = default;
    ~ThreadGroup() { BirthsInProgress::instance().drop_all_of(this); }
    ThreadGroup(const ThreadGroup&) = delete;
    ThreadGroup& operator=(const ThreadGroup&) = delete;

    bool open() const noexcept { return depth_ > 0; }
    // Of the open group, in this process; 0: none is open.
    std::uint32_t number() const noexcept { return open() ? number_ : 0; }
    void started() noexcept {
        if (depth_++ == 0) {
            number_ = next_number();
        }
    }

    // Inside the communicator's gate. NCCL takes in what was asked for when the group ends: until
    // then it is in flight.
    void touched(const registrar::CommunicatorPtr& communicator);
    // The same of a collective of that kind (events/tally.h), and of a call that is none: they are
    // tallied when the group ends, because only then it is known what else is in it.
    void made(const registrar::Communicator& communicator, std::uint64_t kind,
              std::uint64_t nbytes) {
        made_.push_back(
            {&communicator, kind | events::Tally::kKind, nbytes}); // else a kind may be 0
    }
    void made_other(const registrar::Communicator& communicator) {
        if (made_.empty() || made_.back().kind != 0 || made_.back().communicator != &communicator) {
            made_.push_back({&communicator, 0, 0});
        }
    }
    // A call was refused. torch does not end a group whose call failed, and then all that this
    // thread asks for next would wait in it, for ever and without a word. So of an open group only
    // that call is left out, as if NCCL had taken it, and the end of the group says `refusal`.
    int refused(int refusal) noexcept {
        return open() && refusal != kSuccess ? (refusal_ = refusal, kSuccess) : refusal;
    }
    // How many flights of the communicator the open group has; its thread need not wait for them.
    std::size_t flights(const registrar::Communicator& communicator) const noexcept;

    // Runs `end` (NCCL's ncclGroupEnd). At the outermost level all gates of the group's
    // communicators are held meanwhile, entered in one global order so that two threads that end
    // groups cannot wait for each other. `launches`: not ncclGroupSimulateEnd, which says how long
    // the calls would take; it makes and ends communicators nevertheless (NCCL 2.28.9).
    template <typename End> int ended(registrar::Registrar& registrar, bool launches, End&& end) {
        const bool outermost = depth_ == 1;
        const int result = closed(end, launches);
        if (outermost) {
            completed(result, registrar);
        }
        return told(result);
    }

    // Of the open group: NCCL makes the communicator at its end.
    void expect(Birth birth) { births_.push_back(std::move(birth)); }
    // Not in a group: NCCL is making it, and this thread will hear of that.
    void expect_in_progress(Birth birth) {
        BirthsInProgress::instance().expect(this, std::move(birth));
    }
    void deliver_all(registrar::Registrar& registrar) {
        BirthsInProgress::instance().deliver_all(this, registrar);
    }
    // `communicator` is ending, or what is to be made from it, in a group or in progress.
    void drop_births_of(Comm communicator) noexcept;

    // Of the open group: NCCL ends the communicator, for which `ending` waits, at the group's end.
    void expect(std::unique_ptr<Ending> ending) { endings_.push_back(std::move(ending)); }

  private:
    template <typename End> int closed(End&& end, bool launches) {
        if (depth_ != 1) {
            depth_ -= depth_ > 0;
            return end();
        }
        const std::vector<registrar::CommunicatorPtr> touched = std::exchange(touched_, {});
        const std::vector<registrar::CommunicatorPtr> inside = enter_all(touched);
        const int result = end();
        depth_ = 0;
        if (launches && (result == kSuccess || result == kInProgress)) {
            tally(inside);
            look_at_new_aliases(touched, inside);
        }
        made_.clear();
        leave_all(inside);
        for (const registrar::CommunicatorPtr& communicator : touched) {
            windows::table_of(*communicator).end_group();
        }
        return result;
    }

    static std::vector<registrar::CommunicatorPtr>
    enter_all(std::vector<registrar::CommunicatorPtr> communicators);
    void tally(const std::vector<registrar::CommunicatorPtr>& inside) noexcept; // sorts made_
    static void look_at_new_aliases(const std::vector<registrar::CommunicatorPtr>& touched,
                                    const std::vector<registrar::CommunicatorPtr>& inside) noexcept;
    void completed(int result, registrar::Registrar& registrar);
    static void leave_all(const std::vector<registrar::CommunicatorPtr>& inside) noexcept;

    struct Made {
        const registrar::Communicator* communicator; // which `touched_` keeps
        std::uint64_t kind;                          // 0: of no collective
        std::uint64_t nbytes;
    };

    // What the end of a group returns in place of NCCL's `result`.
    int told(int result) noexcept {
        const int refusal = open() ? kSuccess : std::exchange(refusal_, kSuccess);
        return refusal != kSuccess && (result == kSuccess || result == kInProgress) ? refusal
                                                                                    : result;
    }

    static std::uint32_t next_number() noexcept {
        static std::atomic<std::uint32_t> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) % 0xFFFFFF + 1;
    }

    int depth_ = 0;
    int refusal_ = kSuccess;
    std::uint32_t number_ = 0;
    std::vector<Made> made_;
    std::vector<registrar::CommunicatorPtr> touched_; // each with a begin_group()
    std::vector<Birth> births_;
    std::vector<std::unique_ptr<Ending>> endings_;
};

} // namespace tracehook::nccl
