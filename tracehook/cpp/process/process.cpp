#include "process/process.h"

#include "nccl/birth.h"
#include "nccl/importers.h"
#include "nccl/interpose.h"
#include "nccl/key.h"
#include "torch/held_uses.h"
#include "torch/pausable_memory.h"
#include "torch/segment_source.h"
#include "windows/communicator_windows.h"
#include "windows/scope_stack.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <pthread.h>
#include <set>
#include <stdexcept>

namespace tracehook::process {

namespace {

std::atomic<Process*> instance{nullptr};

void abandon_in_child() {
    if (Process* process = instance.load()) {
        process->registrar().abandon();
        process->ring().abandon();
    }
}

} // namespace

Process* Process::current() noexcept {
    return instance.load(std::memory_order_acquire);
}

Process::Process(const std::string& ring_path, std::size_t ring_capacity)
    : ring_(ring_path, ring_capacity), bank_(ring_),
      registrar_(ring_, windows::in(bank_), {}, &memory_) {}

Process& Process::make(const std::string& ring_path, std::size_t ring_capacity) {
    Process* const old = current();
    if (old != nullptr && !old->registrar_.abandoned()) {
        throw std::logic_error("tracehook was started in this process before");
    }
    if (old != nullptr && old->attached()) {
        throw std::logic_error(
            "this process was forked from one that used CUDA: use the spawn start method");
    }
    auto* const process = new Process(ring_path, ring_capacity);
    instance.store(process, std::memory_order_release);
    static const int registered = pthread_atfork(nullptr, nullptr, abandon_in_child);
    static_cast<void>(registered);
    return *process;
}

std::vector<std::string> Process::interpose() {
    nccl::set_refused_observer([] {
        if (Process* process = current()) {
            process->stand_aside();
            process->ring().push(
                events::make_event(events::row::HookUnsupported{.reason = Reason::kSlotsRefused}));
        }
    });
    std::vector<elf::Beside> beside = torch::pausing_calls(registrar_);
    std::ranges::move(torch::sharing_calls(), std::back_inserter(beside));
    return nccl::install_interposer(registrar_, beside);
}

void Process::on_segment(void* user, const th_segment_event* event) {
    auto* const self = static_cast<Process*>(user);
    if (event->action == TH_BLOCK_FREE || event->action == TH_BLOCK_FREED) {
        self->on_free(*event);
        return;
    }
    if (self->stands_aside_.load(std::memory_order_acquire)) {
        return;
    }
    switch (event->action) {
    case TH_SEGMENT_ALLOC:
        self->registrar_.segment_allocated(event->device, event->address, event->size,
                                           self->pool_of(*event));
        break;
    case TH_SEGMENT_FREE:
        self->registrar_.segment_freed(event->device, event->address, event->size);
        break;
    case TH_BLOCK_ALLOC:
        if (!self->registrar_.abandoned()) {
            windows::ScopeStack::block_allocated(self->bank_, event->device, event->address);
        }
        break;
    case TH_SEGMENT_MAP:
        if (!self->registrar_.abandoned() && !self->expandable_seen_.exchange(true)) {
            self->ring_.push(events::make_event(
                events::row::HookUnsupported{.reason = Reason::kExpandableSegments}));
        }
        self->registrar_.range_mapped(event->device, event->address, event->size);
        break;
    case TH_SEGMENT_UNMAP:
        self->registrar_.range_unmapped(event->device, event->address, event->size);
        break;
    default:
        break;
    }
}

registrar::PoolKind Process::pool_of(const th_segment_event& event) const noexcept {
    // A hook library of an older tracehook does not tell it.
    if (event.struct_size < sizeof(event) || event.pool == TH_POOL_DEFAULT) {
        return registrar::PoolKind::kDefault;
    }
    if (bank_.find(event.address)) {
        return registrar::PoolKind::kPrivate; // ours
    }
    // What is older than our slot never came through it.
    const bool is_new = event.action == TH_SEGMENT_ALLOC;
    return is_new && torch::is_made_elsewhere(event.address)
               ? registrar::PoolKind::kOwnAllocator
               : static_cast<registrar::PoolKind>(event.pool);
}

// Also where it stands aside: what was counted has to be counted down.
void Process::on_free(const th_segment_event& event) noexcept {
    if (registrar_.abandoned()) {
        return;
    }
    if (event.action == TH_BLOCK_FREE) {
        pending_blocks_.free(event.device, event.address);
        if (hook_library_->looks_beside_pools() && !hook_library_->capturing(event.device)) {
            torch::expect_use(event.device, event.address);
        }
    } else {
        torch::expect_no_use();
        pending_blocks_.freed(event.device, event.address);
    }
}

Reason Process::attach(const std::string& library_path, const std::string& torch_version) {
    const std::lock_guard guard(attach_mutex_);
    if (attached() || registrar_.abandoned() || stands_aside_.load(std::memory_order_acquire)) {
        return Reason::kNone;
    }
    if (!hook_library_) {
        hook_library_ = std::make_unique<torch::HookLibrary>(library_path, torch_version);
    }
    const th_allocator_info info = hook_library_->describe();
    if (std::strcmp(info.name, "native") != 0) {
        return Reason::kForeignAllocator;
    }
    if (info.initialized == 0) {
        throw std::runtime_error(
            "CUDA is not initialised yet: a tracker attached now would see nothing");
    }
    hook_library_->snapshot(); // if torch cannot say what exists, no tracker is attached at all
    // First the tracker, then the snapshot: a segment that is born in between is seen twice, never
    // not at all.
    registrar_.begin_adoption();
    hook_library_->watch_blocks(windows::ScopeStack::open());
    hook_library_->watch_frees(bank_.span());
    if (hook_library_->looks_beside_pools()) {
        torch::hold_uses(bank_);
    }
    hook_library_->attach(&Process::on_segment, this);
    bool expandable = info.expandable_segments != 0;
    try {
        expandable |= adopt(repeated_snapshot());
    } catch (...) {
        stand_aside();
        registrar_.end_adoption();
        throw;
    }
    attached_.store(true, std::memory_order_release);
    registrar_.end_adoption();
    ring_.push(events::make_event(events::row::HookAttach{.segments = registrar_.totals().segments,
                                                          .bytes = registrar_.totals().bytes}));
    if (info.caching == 0) {
        return Reason::kNoCaching;
    }
    return expandable && !expandable_seen_.exchange(true) ? Reason::kExpandableSegments
                                                          : Reason::kNone;
}

std::vector<th_segment_event> Process::repeated_snapshot() const {
    constexpr int kRepetitions = 3;
    for (int i = 0; i < kRepetitions; ++i) {
        try {
            return hook_library_->snapshot();
        } catch (const std::exception&) {
            // Once it succeeded, and there is no way back from the tracker.
        }
    }
    return hook_library_->snapshot();
}

// The tracker stays; some segments are not known, or some calls. To register beside them would be a
// mixture, or a race.
void Process::stand_aside() {
    registrar_.set_registering(false); // before their ends pass us by
    stands_aside_.store(true, std::memory_order_release);
}

void Process::set_registering(bool on) {
    if (!on || !stands_aside_.load(std::memory_order_acquire)) {
        registrar_.set_registering(on);
    }
}

bool Process::adopt(const std::vector<th_segment_event>& segments) {
    bool expandable = false;
    for (const th_segment_event& segment : segments) {
        if (segment.expandable == 0) {
            registrar_.adopt_segment(segment.device, segment.address, segment.size,
                                     pool_of(segment));
        } else {
            registrar_.adopt_range(segment.device, segment.address, segment.size);
            expandable = true;
        }
    }
    return expandable;
}

const torch::HookLibrary& Process::hook_library() const {
    if (!hook_library_) {
        throw std::runtime_error("not attached to the allocator");
    }
    return *hook_library_;
}

th_allocator_info Process::describe_allocator() const {
    return hook_library().describe();
}

std::string Process::hook_library_version() const {
    return hook_library_ ? hook_library_->torch_version() : "";
}

std::optional<std::size_t> Process::check() noexcept {
    constexpr int kAttempts = 5;
    using Key = std::tuple<int, std::uintptr_t, std::size_t>;
    if (!attached() || registrar_.abandoned()) {
        return std::nullopt;
    }
    try {
        for (int attempt = 0; attempt < kAttempts; ++attempt) {
            const std::uint64_t before = registrar_.ledger_version();
            std::set<Key> ours;
            for (const registrar::Segment& segment : registrar_.segments()) {
                ours.insert({segment.device, segment.address, segment.size});
            }
            for (const registrar::Segment& segment : registrar_.segments_asleep()) {
                ours.insert({segment.device, segment.address, segment.size});
            }
            for (const registrar::Range& range : registrar_.ranges()) {
                ours.insert({range.device, range.address, range.size});
            }
            std::set<Key> theirs;
            registrar::Ranges mapped; // two that meet are one, as ours are
            for (const th_segment_event& segment : hook_library_->snapshot()) {
                if (segment.expandable == 0) {
                    theirs.insert({segment.device, segment.address, segment.size});
                } else {
                    mapped.map(segment.device, segment.address, segment.size);
                }
            }
            for (const registrar::Range& range : mapped.all()) {
                theirs.insert({range.device, range.address, range.size});
            }
            if (before != registrar_.ledger_version()) {
                continue;
            }
            std::vector<Key> differences;
            std::ranges::set_symmetric_difference(ours, theirs, std::back_inserter(differences));
            ring_.push(
                events::make_event(events::row::LedgerCheck{.differences = differences.size(),
                                                            .segments = theirs.size(),
                                                            .ok = differences.empty()}));
            for (const auto& [device, address, size] : differences) {
                const bool is_ours = ours.contains({device, address, size});
                ring_.push(events::make_event(events::row::LedgerDifference{.addr = address,
                                                                            .size = size,
                                                                            .only_in = is_ours},
                                              {.device = static_cast<std::int16_t>(device)}));
            }
            return differences.size();
        }
    } catch (const std::exception&) {
        // torch refused the snapshot; the comparison is a diagnosis and must not end the call it
        // follows.
    }
    return std::nullopt;
}

void Process::check_at_births() {
    nccl::set_birth_observer([] {
        if (Process* process = current()) {
            process->check();
        }
    });
}

bool Process::adopt_communicator(void* pointer, int device, const std::string& name,
                                 bool registers_itself) {
    if (pointer == nullptr || registrar_.abandoned() || registrar_.find(pointer)) {
        return false;
    }
    nccl::Birth birth;
    birth.handle = pointer;
    birth.key = nccl::key_of_name(name);
    birth.device = device;
    birth.local = nccl::local_of(registers_itself);
    birth.adopted = true;
    birth.shares = nccl::config_sharing(nullptr);
    nccl::deliver(registrar_, birth);
    return true;
}

} // namespace tracehook::process
