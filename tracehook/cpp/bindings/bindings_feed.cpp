// tracehook.subscribe: a listener of the feed that keeps what it hears until Python asks.
#include "bindings/bindings.h"
#include "registrar/feed_abi.h"

#include <pybind11/stl.h>

#include <mutex>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace tracehook::bindings {

namespace {

using Change = std::tuple<int, std::uint64_t, int, std::uintptr_t, std::size_t, int>;

// By the thread that heard of the change, and by the one that asks.
class Subscription {
  public:
    Subscription() : number_(tracehook_subscribe(&hear, this)) {
        if (number_ == 0) {
            throw std::runtime_error("tracehook does not run in this process");
        }
    }
    Subscription(const Subscription&) = delete;
    Subscription& operator=(const Subscription&) = delete;
    ~Subscription() { close(); }

    void close() noexcept { tracehook_unsubscribe(std::exchange(number_, 0)); }

    std::vector<Change> take() {
        const std::lock_guard guard(mutex_);
        return std::exchange(heard_, {});
    }

  private:
    static void hear(void* user, const tracehook_segment_change* change) {
        auto& self = *static_cast<Subscription*>(user);
        const std::lock_guard guard(self.mutex_);
        self.heard_.emplace_back(change->what, change->id, change->device, change->address,
                                 change->size, change->memory);
    }

    std::mutex mutex_; // a leaf
    std::vector<Change> heard_;
    std::uint64_t number_ = 0;
};

} // namespace

void bind_feed(py::module_& module) {
    py::class_<Subscription>(module, "Subscription")
        .def(py::init<>(), NoGil())
        .def("take", &Subscription::take, NoGil())
        .def("close", &Subscription::close, NoGil());
}

} // namespace tracehook::bindings
