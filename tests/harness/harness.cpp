#include "harness.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tracehook::testing {

namespace {

// Addresses only; the one that went last comes first, as with a real driver. The bank's functions
// get no pointer to it, so there is one in a process.
struct PretendedMemory {
    std::mutex mutex; // the next three
    std::uintptr_t next = std::uintptr_t{1} << 40;
    std::map<std::uintptr_t, std::size_t> live;
    std::map<std::size_t, std::vector<std::uintptr_t>> released; // by size
    std::atomic<bool> is_out{false};

    static PretendedMemory& the() {
        static auto* const memory = new PretendedMemory;
        return *memory;
    }

    static void* allocate(std::size_t size) {
        PretendedMemory& self = the();
        if (self.is_out.load()) {
            return nullptr;
        }
        const std::lock_guard guard(self.mutex);
        std::vector<std::uintptr_t>& again = self.released[size];
        std::uintptr_t address = self.next;
        if (again.empty()) {
            self.next += size;
        } else {
            address = again.back();
            again.pop_back();
        }
        self.live[address] = size;
        return reinterpret_cast<void*>(address);
    }

    static int release(void* memory) {
        PretendedMemory& self = the();
        const std::lock_guard guard(self.mutex);
        const auto found = self.live.find(reinterpret_cast<std::uintptr_t>(memory));
        if (found == self.live.end()) {
            return 1;
        }
        self.released[found->second].push_back(found->first);
        self.live.erase(found);
        return 0;
    }
};

} // namespace

// The library's side of a communicator. It has no lock of its own on purpose: the gate must be
// enough, and the entry counter (and the thread sanitizer) tell if it was not.
class Harness::ScriptedRegistrationCalls final : public registrar::RegistrationCalls {
  public:
    ScriptedRegistrationCalls(std::uintptr_t pointer, int device, std::shared_ptr<Script> script)
        : pointer_(pointer), device_(device), script_(std::move(script)) {}

    registrar::Outcome register_range(std::uintptr_t address, std::size_t size) noexcept override {
        const Entry entry(*this);
        check_alive();
        registrar::Outcome outcome;
        const std::lock_guard guard(script_->mutex);
        if (const auto plan = script_->fail_after.find(pointer_);
            plan != script_->fail_after.end()) {
            outcome.result = plan->second-- <= 0 ? 1 : 0;
        }
        if (outcome.result == 0) {
            outcome.handle = reinterpret_cast<void*>(++last_handle_);
            ranges_[last_handle_] = {address, size};
        }
        script_->calls.push_back({pointer_, true, address, size, outcome.result});
        return outcome;
    }

    int deregister(void* handle) noexcept override {
        const Entry entry(*this);
        check_alive();
        const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(handle));
        if (found == ranges_.end()) {
            ++script_->violations;
            return 5;
        }
        const std::lock_guard guard(script_->mutex);
        script_->calls.push_back({pointer_, false, found->second.first, found->second.second, 0});
        ranges_.erase(found);
        return 0;
    }

    registrar::Outcome register_window(std::uintptr_t address, std::size_t size) noexcept override {
        return register_range(address, size);
    }
    int deregister_window(void* handle) noexcept override { return deregister(handle); }
    void synchronize() noexcept override {}

    int remember_device() noexcept override { return 0; }
    void restore_device(int) noexcept override {}

    bool ready() noexcept override {
        const std::lock_guard guard(script_->mutex);
        const auto found = script_->in_progress.find(pointer_);
        return found == script_->in_progress.end() || !found->second;
    }

    void touch(int hold_us) noexcept {
        const Entry entry(*this);
        ++touches_;
        if (hold_us > 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(hold_us));
        }
    }

    // From now on a register or deregister call is a violation.
    void end() noexcept { ended_.store(true); }

    // The library undoes its registrations itself now, in a while.
    void begin_abort() noexcept { dying_.store(true); }

    // A library that is busy keeps what it has beyond the end of the registrar's patience. A free
    // that waited for it then returns; whether that is before or after end() is chance.
    void begin_destroy() noexcept {
        if (!ready()) {
            dying_.store(true);
        }
    }

    template <typename Is> bool holds(int device, Is&& is) const {
        if (device != device_ || dying_.load()) {
            return false;
        }
        const std::lock_guard guard(script_->mutex);
        return std::ranges::any_of(
            ranges_, [&](const auto& row) { return is(row.second.first, row.second.second); });
    }

    std::vector<std::pair<std::uintptr_t, std::size_t>> ranges() const {
        std::vector<std::pair<std::uintptr_t, std::size_t>> sorted;
        for (const auto& [handle, range] : ranges_) {
            sorted.push_back(range);
        }
        std::ranges::sort(sorted);
        return sorted;
    }

  private:
    void check_alive() noexcept {
        if (ended_.load()) {
            ++script_->violations;
        }
    }

    struct Entry {
        explicit Entry(ScriptedRegistrationCalls& communicator) : owner(communicator) {
            if (owner.inside_.fetch_add(1) != 0) {
                ++owner.script_->violations;
            }
            if (const int delay = owner.script_->delay_us.load(); delay > 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(delay));
            }
        }
        ~Entry() { owner.inside_.fetch_sub(1); }
        ScriptedRegistrationCalls& owner;
    };

    const std::uintptr_t pointer_;
    const int device_;
    const std::shared_ptr<Script> script_;
    std::map<std::uintptr_t, std::pair<std::uintptr_t, std::size_t>>
        ranges_; // by handle; thread inside
    std::uintptr_t last_handle_ = 0;
    std::uint64_t touches_ = 0;
    std::atomic<int> inside_{0};
    std::atomic<bool> dying_{false};
    std::atomic<bool> ended_{false};
};

namespace {

registrar::Patience patience(int milliseconds) {
    registrar::Patience patience;
    if (milliseconds != 0) {
        const registrar::Patience::Duration each(milliseconds);
        patience.others_for_gate = patience.free_until_notice = each;
        patience.undoing_for_ready = patience.end_for_graphs = each;
    }
    return patience;
}

} // namespace

Harness::Harness(std::size_t ring_capacity, int patience_ms)
    : ring_("", ring_capacity, 16), registrar_(ring_, windows::in(bank_), patience(patience_ms)) {}

void Harness::allocate(int device, std::uintptr_t address, std::size_t size,
                       registrar::PoolKind pool) {
    registrar_.segment_allocated(device, address, size, pool);
    // What lay there before, and whose free was not seen.
    check_gone(device, [&](std::uintptr_t other, std::size_t length) {
        return other < address + size && address < other + length &&
               (other != address || length != size);
    });
}

void Harness::free(int device, std::uintptr_t address, std::size_t size) {
    registrar_.segment_freed(device, address, size);
    check_gone(device, [&](std::uintptr_t other, std::size_t) { return other == address; });
}

template <typename Is> void Harness::check_gone(int device, Is&& is) {
    if (registrar_.abandoned()) {
        return; // a forked child undoes nothing
    }
    const std::lock_guard guard(live_mutex_);
    for (const auto& [pointer, calls] : live_) {
        if (calls->holds(device, is)) {
            ++script_->violations;
        }
    }
}

void Harness::create(std::uintptr_t pointer, int device, std::uintptr_t parent, bool observed) {
    registrar::Identity identity;
    identity.pointer = reinterpret_cast<void*>(pointer);
    identity.device = device;
    identity.key = pointer;
    identity.local = observed ? registrar::Local::kObserved : registrar::Local::kOurs;
    registrar_.add(
        identity,
        [&](const registrar::Identity&) {
            auto communicator =
                std::make_unique<ScriptedRegistrationCalls>(pointer, device, script_);
            const std::lock_guard guard(live_mutex_);
            live_[pointer] = communicator.get();
            return communicator;
        },
        parent != 0 ? registrar_.find(reinterpret_cast<void*>(parent)) : nullptr);
}

bool Harness::collective(std::uintptr_t pointer, int hold_us) {
    const registrar::CommunicatorPtr communicator =
        registrar_.find(reinterpret_cast<void*>(pointer));
    if (!communicator || !communicator->gate().enter(*communicator)) {
        return false;
    }
    ScriptedRegistrationCalls* calls = nullptr;
    {
        const std::lock_guard guard(live_mutex_);
        const auto found = live_.find(pointer);
        calls = found != live_.end() ? found->second : nullptr;
    }
    if (calls != nullptr) {
        calls->touch(hold_us);
    }
    communicator->gate().leave();
    return true;
}

bool Harness::enter(std::uintptr_t pointer) {
    const registrar::CommunicatorPtr communicator =
        registrar_.find(reinterpret_cast<void*>(pointer));
    if (!communicator || !communicator->gate().enter(*communicator)) {
        return false;
    }
    const std::lock_guard guard(live_mutex_);
    inside_[pointer] = communicator;
    return true;
}

void Harness::leave(std::uintptr_t pointer) {
    registrar::CommunicatorPtr communicator;
    {
        const std::lock_guard guard(live_mutex_);
        communicator = inside_.extract(pointer).mapped();
    }
    communicator->gate().leave();
}

bool Harness::by_others(std::uintptr_t pointer) {
    const registrar::CommunicatorPtr communicator =
        registrar_.find(reinterpret_cast<void*>(pointer));
    if (!communicator || !communicator->gate().enter_soon(*communicator)) {
        return false;
    }
    communicator->gate().leave();
    return true;
}

void Harness::retire(std::uintptr_t pointer) {
    const auto communicator =
        registrar_.find(reinterpret_cast<void*>(pointer)); // keeps it alive until we are done
    {
        const std::lock_guard guard(live_mutex_);
        if (const auto found = live_.find(pointer); found != live_.end()) {
            found->second->begin_destroy();
        }
    }
    registrar_.retire(reinterpret_cast<void*>(pointer));
    end(pointer, communicator != nullptr);
}

void Harness::kill(std::uintptr_t pointer) {
    const auto communicator =
        registrar_.find(reinterpret_cast<void*>(pointer)); // keeps it alive until we are done
    {
        const std::lock_guard guard(live_mutex_);
        if (const auto found = live_.find(pointer); found != live_.end()) {
            found->second->begin_abort();
        }
    }
    registrar_.kill(reinterpret_cast<void*>(pointer));
    end(pointer, communicator != nullptr);
}

void Harness::end(std::uintptr_t pointer, bool known) {
    const std::lock_guard guard(live_mutex_);
    if (const auto found = live_.find(pointer); known && found != live_.end()) {
        found->second->end();
        live_.erase(found);
    }
}

void Harness::open_bank(std::size_t limit) {
    bank_.open(
        {&PretendedMemory::allocate, &PretendedMemory::release, [] {}, [](int) { return 0; }},
        limit);
}

void Harness::set_out_of_memory(bool on) noexcept {
    PretendedMemory::the().is_out.store(on);
}

bool Harness::mapped(std::uintptr_t address) {
    PretendedMemory& memory = PretendedMemory::the();
    const std::lock_guard guard(memory.mutex);
    return memory.live.contains(address);
}

windows::Side Harness::Buffers::side(std::size_t which) const {
    return {reinterpret_cast<const void*>(address[which]), size[which], compare[which]};
}

windows::Windows::Lookup Harness::look(registrar::Communicator& communicator,
                                       std::uint32_t operation, const Buffers& buffers,
                                       windows::Windows::Act act) {
    return windows::table_of(communicator).look(operation, buffers.side(0), buffers.side(1), act);
}

void Harness::accept(registrar::Communicator& communicator, const windows::Windows::Lookup& look,
                     const Buffers& buffers) {
    windows::table_of(communicator).accept(look, buffers.side(0), buffers.side(1));
}

std::vector<std::pair<std::uintptr_t, std::size_t>> Harness::held(std::uintptr_t pointer) {
    const std::lock_guard guard(live_mutex_);
    const auto found = live_.find(pointer);
    return found != live_.end() ? found->second->ranges()
                                : std::vector<std::pair<std::uintptr_t, std::size_t>>{};
}

} // namespace tracehook::testing
