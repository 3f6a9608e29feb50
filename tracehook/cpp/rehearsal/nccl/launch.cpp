#include "launch.h"

#include "effect.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <tuple>

namespace tracehook::rehearsal::nccl {

using namespace std::chrono_literals;

namespace {

std::uint64_t next_number(Communicator& communicator, const Operation& operation) {
    return operation.kind == Kind::kSend      ? communicator.next_send(operation.peer)
           : operation.kind == Kind::kReceive ? communicator.next_receive(operation.peer)
                                              : communicator.next_collective();
}

// The operations of one launch on one communicator. They run on the first stream; the other streams
// that were named wait for it, and it for them. What was captured runs once for every launch of its
// graph, each time with another number, on the first stream alone: a graph has its own order.
class Work {
  public:
    explicit Work(std::shared_ptr<Communicator> communicator)
        : communicator_(std::move(communicator)) {}

    void add(const Operation& operation, Stream stream) {
        operations_.push_back(operation);
        if (std::ranges::find(streams_, stream) == streams_.end()) {
            streams_.push_back(stream);
        }
    }

    const std::vector<Stream>& streams() const { return streams_; }

    // Comes before each run, in the order in which the runs are to happen.
    void launched() {
        if (communicator_->state() == State::kEnded) {
            report(Rule::kC5, communicator_->subject(), "a graph that uses it was launched");
        }
        change([this] {
            numbers_.push_back(communicator_->launch_work());
            for (const Operation& operation : operations_) {
                in_use_.push_back(operation.send_record.lock());
                in_use_.push_back(operation.receive_record.lock());
            }
        });
    }

    void lead() {
        await([this] { return arrived_ + 1 == streams_.size(); });
        run();
        change([this] { done_ = true; });
    }

    void run() {
        std::uint64_t number = 0;
        change([&] {
            number = numbers_.front();
            numbers_.pop_front();
        });
        if (communicator_->state() != State::kEnded && communicator_->begin_work(number)) {
            run_operations();
            communicator_->end_work(number);
        }
        change([this] {
            if (numbers_.empty()) {
                in_use_.clear();
            }
        });
    }

    void captured() { communicator_->captured(); }
    void dropped() { communicator_->released(); }

    void accompany() {
        change([this] { ++arrived_; });
        await([this] { return done_; });
    }

  private:
    void run_operations() {
        for (Operation& operation : operations_) {
            operation.sequence = next_number(*communicator_, operation);
            compare_memory(*communicator_, operation);
            if (!operation.between_two()) {
                run_collective(*communicator_, operation);
            }
        }
        run_transfers(*communicator_, operations_);
    }

    template <typename Change> void change(Change make) {
        const std::lock_guard lock(mutex_);
        make();
        changed_.notify_all();
    }

    template <typename Ready> void await(Ready ready) {
        std::unique_lock lock(mutex_);
        while (!ready() && !communicator_->stopped()) {
            changed_.wait_for(lock, 20ms);
        }
    }

    const std::shared_ptr<Communicator> communicator_;
    std::vector<Operation> operations_; // numbered by the run whose turn it is
    std::vector<Stream> streams_;
    std::mutex mutex_; // protects what follows; comes before the communicator's lock of the work
    std::condition_variable changed_;
    std::deque<std::uint64_t> numbers_;               // of the runs that are still to come
    std::vector<std::shared_ptr<const void>> in_use_; // the records of the runs that have not ended
    std::size_t arrived_ = 0;
    bool done_ = false;
};

struct Ticket {
    std::shared_ptr<Work> work;
    bool leads;
};

void run_ticket(void* argument) {
    const std::unique_ptr<Ticket> ticket(static_cast<Ticket*>(argument));
    ticket->leads ? ticket->work->lead() : ticket->work->accompany();
}

std::shared_ptr<Work>& captured(void* argument) {
    return *static_cast<std::shared_ptr<Work>*>(argument);
}

// Rules W12 and W15.
Placement place(Communicator& communicator, const Operation& operation, const char* which,
                const void* pointer, std::size_t size) {
    const WindowTable& windows = communicator.windows();
    const Placement placement = size == 0 ? Placement{} : windows.find(pointer, size);
    if (placement.position == 0) {
        return placement;
    }
    const char* name = shape(operation.kind).name;
    if (placement.runs_over) {
        report(Rule::kW15, communicator.subject(), "%s, %s buffer %p of %zu bytes", name, which,
               pointer, size);
    }
    if (windows.poisoned()) {
        report(Rule::kW12, communicator.subject(), "%s, %s buffer %p", name, which, pointer);
    }
    return placement;
}

// What the call itself decides, also for all runs of a graph.
void find_buffers(Communicator& communicator, Operation& operation, bool captured) {
    const std::size_t sent = operation.send_bytes(communicator.rank(), communicator.ranks());
    const std::size_t received = operation.receive_bytes(communicator.rank(), communicator.ranks());
    const RegistrationCache& registrations = communicator.registrations();
    const auto record = [&](const void* pointer, std::size_t size) {
        return size != 0 ? registrations.covers(pointer, size) : nullptr;
    };
    const auto send = record(operation.send, sent);
    const auto receive = record(operation.receive, received);
    operation.send_registered = send != nullptr;
    operation.receive_registered = receive != nullptr;
    operation.send_record = send;
    operation.receive_record = receive;
    operation.send_placement = place(communicator, operation, "send", operation.send, sent);
    operation.receive_placement =
        place(communicator, operation, "receive", operation.receive, received);
    put_to_use(communicator, operation, captured);
}

void enqueue(const std::shared_ptr<Work>& work) {
    const Stream first = work->streams().front();
    if (emu_stream_capturing(first) != 0) {
        work->captured();
        emu_stream_enqueue_replayable(
            first, [](void* held) { captured(held)->run(); },
            [](void* held) { captured(held)->launched(); },
            [](void* held) {
                captured(held)->dropped();
                delete &captured(held);
            },
            new std::shared_ptr<Work>(work));
        return;
    }
    work->launched();
    for (const Stream stream : work->streams()) {
        emu_stream_enqueue(stream, run_ticket, new Ticket{work, stream == first});
    }
}

using Range = std::vector<Request>::iterator;

void launch_on(const char* call, Communicator& communicator, Range begin, Range end) {
    if (!communicator.enter(call)) {
        return;
    }
    const DeviceScope scope(communicator.device());
    const auto work = std::make_shared<Work>(begin->communicator);
    const bool captured = emu_stream_capturing(begin->stream) != 0;
    for (Range request = begin; request != end; ++request) {
        find_buffers(communicator, request->operation, captured);
        work->add(request->operation, request->stream);
    }
    enqueue(work);
    communicator.leave();
}

} // namespace

void launch(const char* call, std::vector<Request> requests) {
    // By key, which all ranks share: two communicators on one stream must not come in different
    // orders.
    const auto name = [](const Request& request) {
        return std::tuple(request.communicator->key(), request.communicator->rank());
    };
    std::ranges::stable_sort(requests, {}, name);
    for (Range begin = requests.begin(); begin != requests.end();) {
        const Range end = std::find_if(begin, requests.end(), [&](const Request& request) {
            return request.communicator != begin->communicator;
        });
        launch_on(call, *begin->communicator, begin, end);
        begin = end;
    }
}

} // namespace tracehook::rehearsal::nccl
