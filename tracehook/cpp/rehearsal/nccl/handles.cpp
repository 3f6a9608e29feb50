#include "handles.h"

#include "rehearsal/cuda/device.h"
#include "settings.h"

#include <mutex>
#include <unordered_map>

namespace tracehook::rehearsal::nccl {

namespace {

// Large enough to look like what it stands for; nobody reads it.
struct Stand {
    std::byte bytes[4096];
};

struct Table {
    std::mutex mutex; // protects both
    std::unordered_map<Comm, Found> handles;
    std::vector<Comm> free; // the one that died last is at the back
};

Table& table() {
    static Table& kept = *new Table; // never destroyed: a late thread may still look
    return kept;
}

// Rules L4 and W17. On the freeing thread, perhaps under the locks of the emulated device: asks it
// nothing.
void observe_free(std::uintptr_t base, std::size_t size) {
    for (const auto& communicator : live_communicators()) {
        const auto tell = [&](Rule rule, const std::vector<Extent>& extents, const char* what) {
            for (const Extent& extent : extents) {
                report(rule, communicator->subject(),
                       "memory [%#zx, %#zx) is freed, [%#zx, %#zx) is %s", base, base + size,
                       extent.begin, extent.end, what);
            }
        };
        tell(Rule::kL4, communicator->registrations().take_freed(base, size), "registered");
        tell(Rule::kW17, communicator->windows().take_freed(base, size), "a window");
    }
}

} // namespace

Comm open_handle(const std::shared_ptr<Communicator>& communicator) {
    static const bool observed = (emu_set_free_observer(observe_free), true);
    static_cast<void>(observed);
    const std::lock_guard lock(table().mutex);
    Comm handle = nullptr;
    if (settings().reuse_handles && !table().free.empty()) {
        handle = table().free.back();
        table().free.pop_back();
    } else {
        handle = new Stand;
    }
    communicator->set_handle(handle);
    table().handles[handle] = {communicator, nullptr, communicator->rank(),
                               communicator->name().key};
    return handle;
}

void close_handle(const Communicator& communicator, const char* ended_by) {
    std::shared_ptr<Communicator> last; // destroyed after the lock is gone
    const std::lock_guard lock(table().mutex);
    Found& found = table().handles[communicator.handle()];
    if (found.communicator.get() != &communicator) {
        return;
    }
    last = std::move(found.communicator);
    found = {nullptr, ended_by, communicator.rank(), communicator.name().key};
    table().free.push_back(communicator.handle());
}

Found find_handle(Comm handle) {
    const std::lock_guard lock(table().mutex);
    const auto entry = table().handles.find(handle);
    return entry == table().handles.end() ? Found{} : entry->second;
}

std::vector<std::shared_ptr<Communicator>> live_communicators() {
    std::vector<std::shared_ptr<Communicator>> live;
    const std::lock_guard lock(table().mutex);
    for (const auto& [handle, found] : table().handles) {
        if (found.communicator != nullptr) {
            live.push_back(found.communicator);
        }
    }
    return live;
}

} // namespace tracehook::rehearsal::nccl
