// What surrounds the registrar in the stress test: a driver that knows which memory is mapped, and
// the library's side of each communicator, which checks every call that reaches it.
#pragma once

#include "registrar/registrar.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace world {

using namespace tracehook::events;
using namespace tracehook::registrar;

using Range = std::pair<std::uintptr_t, std::size_t>;
using Held = std::map<std::uintptr_t, std::size_t>;
constexpr int kDevices = 2;

class Violations {
  public:
    void add(const std::string& what) {
        const std::lock_guard guard(mutex_);
        ++count_;
        if (count_ <= 10) {
            std::fprintf(stderr, "violation: %s\n", what.c_str());
        }
    }
    std::size_t count() const {
        const std::lock_guard guard(mutex_);
        return count_;
    }

  private:
    mutable std::mutex mutex_; // count_; innermost
    std::size_t count_ = 0;
};

// The memory of the devices. Guarded by its own mutex because communicators look at it too.
class Driver {
  public:
    void map(int device, std::uintptr_t address, std::size_t size) {
        const std::lock_guard guard(mutex_);
        devices_[device][address] = size;
    }
    void unmap(int device, std::uintptr_t address) {
        const std::lock_guard guard(mutex_);
        devices_[device].erase(address);
    }
    bool mapped(int device, const Range& range) const {
        const std::lock_guard guard(mutex_);
        const auto found = devices_[device].find(range.first);
        return found != devices_[device].end() && found->second == range.second;
    }
    Held ranges(int device) const {
        const std::lock_guard guard(mutex_);
        return devices_[device];
    }

  private:
    mutable std::mutex mutex_; // devices_; nothing is locked inside it
    std::array<Held, kDevices> devices_;
};

// Keeps the memory of most segments that are freed while a communicator is busy.
class Keeper final : public SegmentMemory {
  public:
    explicit Keeper(Driver& driver) : driver_(driver) {}
    MemoryKind kind_of(std::uintptr_t) noexcept override { return MemoryKind::kUnknown; }
    std::uintptr_t map_again(const Segment&) noexcept override { return 0; }
    void unmap(const Segment&, std::uintptr_t, bool) noexcept override {}
    bool can_keep(const Segment& segment) noexcept override { return segment.id % 4 != 0; }
    void keep(const Segment& segment) noexcept override {
        const std::lock_guard guard(mutex_);
        freed_[{segment.device, segment.address}] = false;
        ++buried_;
    }
    void let_go(const Segment& segment) noexcept override {
        const std::lock_guard guard(mutex_);
        const auto kept = freed_.find({segment.device, segment.address});
        if (kept->second) {
            driver_.unmap(segment.device, segment.address);
        }
        freed_.erase(kept);
    }

    // By the allocator.
    bool has(int device, std::uintptr_t address) const {
        const std::lock_guard guard(mutex_);
        return freed_.contains({device, address});
    }
    void free(int device, std::uintptr_t address) {
        const std::lock_guard guard(mutex_);
        if (const auto kept = freed_.find({device, address}); kept != freed_.end()) {
            kept->second = true;
        } else {
            driver_.unmap(device, address);
        }
    }
    std::size_t count() const {
        const std::lock_guard guard(mutex_);
        return freed_.size();
    }
    std::size_t buried() const {
        const std::lock_guard guard(mutex_);
        return buried_;
    }

  private:
    Driver& driver_;
    mutable std::mutex mutex_;                             // comes before the driver's
    std::map<std::pair<int, std::uintptr_t>, bool> freed_; // kept; whether the free came
    std::size_t buried_ = 0;
};

// The library's side of one communicator. `held_` has no lock on purpose: the gate must be enough,
// and the thread sanitizer tells if it is not. Lives until the end of the program, so that a late
// call is a report and not a crash.
class Library {
  public:
    // Those that share resources with `parent` also share the promise that one thread at a time is
    // inside.
    Library(int device, const Driver& driver, Violations& violations, const Library* parent)
        : device_(device), driver_(driver), violations_(violations),
          inside_(parent != nullptr ? parent->inside_ : std::make_shared<std::atomic<int>>(0)) {}

    Outcome add(const Range& range) {
        const Entry entry(*this, "register");
        check_mapped(range, "registering");
        held_[++last_handle_] = range;
        std::this_thread::yield();
        check_mapped(range, "while registering");
        return {0, reinterpret_cast<void*>(last_handle_)};
    }
    int remove(void* handle) {
        const Entry entry(*this, "deregister");
        const auto found = held_.find(reinterpret_cast<std::uintptr_t>(handle));
        if (found == held_.end()) {
            violations_.add("deregister of an unknown handle");
            return 5;
        }
        check_mapped(found->second, "deregistering");
        held_.erase(found);
        return 0;
    }
    bool ready() {
        if (ended_.load()) {
            violations_.add("a question to a communicator that has ended");
        }
        return ready_.load();
    }
    void collective() {
        const Entry entry(*this, "a collective");
        ++collectives_; // a write, for the thread sanitizer
        for (int i = 0; i < 3; ++i) {
            std::this_thread::yield();
        }
    }

    void set_ready(bool on) { ready_.store(on); }
    void begin_abort() { dying_.store(true); }
    void end() { ended_.store(true); }
    // When nobody is inside.
    Held held() const {
        Held ranges;
        for (const auto& [handle, range] : held_) {
            ranges.insert(range);
        }
        return ranges;
    }

  private:
    struct Entry {
        Entry(Library& library, std::string_view call) : library(library) {
            if (library.inside_->fetch_add(1) != 0) {
                library.violations_.add(
                    "two threads inside one communicator, or inside two that share resources");
            }
            // An aborted collective may still be on its way out; nothing else may be seen after an
            // end.
            if (library.ended_.load() && (call != "a collective" || !library.dying_.load())) {
                library.violations_.add(std::string(call) + ": the communicator has ended");
            }
        }
        ~Entry() { library.inside_->fetch_sub(1); }
        Library& library;
    };

    // While a communicator is being aborted its segments may go: nobody waits for it any more.
    void check_mapped(const Range& range, const char* when) {
        if (!driver_.mapped(device_, range) && !dying_.load()) {
            violations_.add(std::string(when) + ": the segment is not mapped");
        }
    }

    const int device_;
    const Driver& driver_;
    Violations& violations_;
    const std::shared_ptr<std::atomic<int>> inside_; // threads
    std::map<std::uintptr_t, Range> held_;           // by handle; thread inside the gate
    std::uintptr_t last_handle_ = 0;                 // thread inside the gate
    std::uint64_t collectives_ = 0;                  // thread inside the gate
    std::atomic<bool> ready_{true};
    std::atomic<bool> dying_{false};
    std::atomic<bool> ended_{false};
};

// How the registrar sees it.
class Seen final : public RegistrationCalls {
  public:
    explicit Seen(std::shared_ptr<Library> library) : library_(std::move(library)) {}
    Outcome register_range(std::uintptr_t address, std::size_t size) noexcept override {
        return library_->add({address, size});
    }
    int deregister(void* handle) noexcept override { return library_->remove(handle); }
    Outcome register_window(std::uintptr_t, std::size_t) noexcept override { return {}; }
    int deregister_window(void*) noexcept override { return 0; }
    void synchronize() noexcept override {}
    int remember_device() noexcept override { return 0; }
    void restore_device(int) noexcept override {}
    bool ready() noexcept override { return library_->ready(); }

  private:
    const std::shared_ptr<Library> library_;
};

} // namespace world
