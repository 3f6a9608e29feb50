#include "launch.h"

#include "collectives.h"
#include "emulator/device.h"
#include "transfers.h"

#include <algorithm>
#include <chrono>
#include <tuple>

namespace tracehook::emulator::nccl {

using namespace std::chrono_literals;

namespace {

// The operations of one launch on one communicator. They run on the first stream; the other streams
// that were named wait for it, and it for them.
class Work {
  public:
    Work(std::shared_ptr<Communicator> communicator, std::uint64_t number)
        : communicator_(std::move(communicator)), number_(number) {}

    void add(const Operation& operation, Stream stream) {
        operations_.push_back(operation);
        if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
            streams_.push_back(stream);
        }
    }

    const std::vector<Stream>& streams() const { return streams_; }

    void run() {
        await([this] { return arrived_ + 1 == streams_.size(); });
        if (communicator_->begin_work(number_)) {
            for (const Operation& operation : operations_) {
                if (!operation.between_two()) {
                    run_collective(*communicator_, operation);
                }
            }
            run_transfers(*communicator_, operations_);
            communicator_->end_work(number_);
        }
        change([this] { done_ = true; });
    }

    void accompany() {
        change([this] { ++arrived_; });
        await([this] { return done_; });
    }

  private:
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
    const std::uint64_t number_;
    std::vector<Operation> operations_;
    std::vector<Stream> streams_;
    std::mutex mutex_; // protects the two below; held alone
    std::condition_variable changed_;
    std::size_t arrived_ = 0;
    bool done_ = false;
};

struct Ticket {
    std::shared_ptr<Work> work;
    bool leads;
};

void run_ticket(void* argument) {
    const std::unique_ptr<Ticket> ticket(static_cast<Ticket*>(argument));
    if (ticket->leads) {
        ticket->work->run();
    } else {
        ticket->work->accompany();
    }
}

void number_operation(Communicator& communicator, Operation& operation) {
    switch (operation.kind) {
    case Kind::kSend:
        operation.sequence = communicator.next_send(operation.peer);
        break;
    case Kind::kReceive:
        operation.sequence = communicator.next_receive(operation.peer);
        break;
    default:
        operation.sequence = communicator.next_collective();
    }
    const std::size_t sent = operation.send_bytes(communicator.rank(), communicator.ranks());
    const std::size_t received = operation.receive_bytes(communicator.rank(), communicator.ranks());
    const RegistrationCache& registrations = communicator.registrations();
    operation.send_registered = sent != 0 && registrations.covers(operation.send, sent);
    operation.receive_registered =
        received != 0 && registrations.covers(operation.receive, received);
}

using Range = std::vector<Request>::iterator;

void launch_on(const char* call, Communicator& communicator, Range begin, Range end) {
    if (!communicator.enter(call)) {
        return;
    }
    const DeviceScope scope(communicator.device());
    const auto work = std::make_shared<Work>(begin->communicator, communicator.launch_work());
    for (Range request = begin; request != end; ++request) {
        number_operation(communicator, request->operation);
        work->add(request->operation, request->stream);
    }
    for (const Stream stream : work->streams()) {
        const bool leads = stream == work->streams().front();
        emu_stream_enqueue(stream, run_ticket, new Ticket{work, leads});
    }
    communicator.leave();
}

} // namespace

DeviceScope::DeviceScope(int device) : before_(emu_current_device()) {
    emu_set_current_device(device);
}

DeviceScope::~DeviceScope() {
    emu_set_current_device(before_);
}

void launch(const char* call, std::vector<Request> requests) {
    // By key, which all ranks share: two communicators on one stream must not come in different
    // orders.
    const auto name = [](const Request& request) {
        return std::tuple(request.communicator->key(), request.communicator->rank());
    };
    std::stable_sort(
        requests.begin(), requests.end(),
        [&](const Request& left, const Request& right) { return name(left) < name(right); });
    for (Range begin = requests.begin(); begin != requests.end();) {
        const Range end = std::find_if(begin, requests.end(), [&](const Request& request) {
            return request.communicator != begin->communicator;
        });
        launch_on(call, *begin->communicator, begin, end);
        begin = end;
    }
}

} // namespace tracehook::emulator::nccl
