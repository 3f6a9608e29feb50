#include "nccl/importers.h"

#include "nccl/api.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <dlfcn.h>
#include <link.h>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <stdexcept>
#include <utility>

namespace tracehook::nccl {

using elf::Beside;
using elf::load_count;
using elf::LoadCount;
using elf::loaded_objects;
using elf::LoadedObject;
using elf::Replacement;
using elf::rewrite;
using elf::Slot;

namespace {

constexpr const char* kOfNccl = "nccl"; // how the names of its functions begin
constexpr const char* kTorch = "libtorch_cuda";

// Never destroyed: threads may still load something at exit.
struct Importers {
    std::timed_mutex mutex;
    bool is_lost = false;                // set by a child before it has other threads
    std::atomic<bool> wants_look{false}; // somebody came who did not get the lock
    std::vector<Replacement> calls;
    std::vector<Beside> beside;
    std::vector<Replacement> all; // the calls, those beside, and after them dlsym and dlopen
    LoadedObject nccl;            // the library itself
    LoadCount count;
    std::set<std::pair<std::uintptr_t, std::string>> seen;
    RefusedObserver refused;

    static Importers& instance() {
        static auto* const all = new Importers;
        return *all;
    }
};

// Whoever has the lock may wait for the dynamic linker's, and a thread that has that one (it is
// loading an object, whose code runs already) may come here. So nobody waits for ever.
constexpr std::chrono::seconds kPatience{1};

// A child that is forked while another thread looks at the loaded objects could load nothing any
// more: glibc leaves it that lock of the dynamic linker. So a fork waits for the end of the look.
void make_forks_wait() {
    static thread_local bool has_lock = false;
    static const int registered = pthread_atfork(
        [] {
            Importers& all = Importers::instance();
            has_lock = !all.is_lost && all.mutex.try_lock_for(kPatience);
        },
        [] {
            if (std::exchange(has_lock, false)) {
                Importers::instance().mutex.unlock();
            }
        },
        [] {
            Importers& all = Importers::instance();
            all.is_lost = !std::exchange(has_lock, false);
            if (!all.is_lost) {
                all.mutex.unlock();
            }
        });
    static_cast<void>(registered);
}

// The lock. False if it did not come in time, or never will: in a child that was forked meanwhile.
class Guard {
  public:
    explicit Guard(Importers& importers) : importers_(importers) {
        make_forks_wait();
        has_ = !importers_.is_lost && importers_.mutex.try_lock_for(kPatience);
    }
    ~Guard() {
        if (has_) {
            importers_.mutex.unlock();
        }
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    explicit operator bool() const noexcept { return has_; }

  private:
    Importers& importers_;
    bool has_ = false;
};

// Held, so that nobody unloads it: null if it has gone, or another one lies there now.
std::unique_ptr<void, int (*)(void*)> hold(const LoadedObject& object) noexcept {
    std::unique_ptr<void, int (*)(void*)> handle(
        dlopen(object.path.empty() ? nullptr : object.path.c_str(), RTLD_LAZY | RTLD_NOLOAD),
        dlclose);
    link_map* map = nullptr;
    if (handle != nullptr && dlinfo(handle.get(), RTLD_DI_LINKMAP, &map) == 0 &&
        map->l_addr == object.base) {
        return handle;
    }
    return {nullptr, dlclose};
}

std::vector<std::string> symbols_of(const LoadedObject& object,
                                    const std::vector<Replacement>& replacements) {
    std::set<std::string> names;
    for (const Slot& slot : object.slots) {
        names.emplace(replacements[slot.replacement].symbol);
    }
    return {names.begin(), names.end()};
}

// All objects may call NCCL; some also look names up, or load others.
std::size_t that_matter(const Importers& importers, const LoadedObject& object) {
    const std::string name = object.name();
    if (object.path.empty() || name.starts_with("libpython") || name.starts_with("_ctypes")) {
        return importers.all.size();
    }
    const std::size_t calls = importers.calls.size() + importers.beside.size();
    return calls + (name.find(kOfNccl) != std::string::npos ? 1 : 0);
}

// Whether this slot is to be rewritten: it leads to our NCCL, or to the very function that we stand
// beside.
bool is_ours(const Importers& importers, const LoadedObject& object, const Slot& slot,
             void* handle) {
    const std::size_t calls = importers.calls.size();
    const bool is_torch = object.name().starts_with(kTorch);
    if (slot.replacement < calls ? is_torch : slot.replacement >= calls + importers.beside.size()) {
        return true;
    }
    const void* target = slot.target();
    if (object.contains(target)) { // not used yet
        const char* const symbol = importers.all[slot.replacement].symbol;
        const void* const everywhere = dlsym(RTLD_DEFAULT, symbol);
        target = everywhere != nullptr ? everywhere : dlsym(handle, symbol);
    }
    if (slot.replacement < calls) {
        return importers.nccl.contains(target);
    }
    return !is_torch && target != nullptr &&
           target == importers.beside[slot.replacement - calls].real();
}

// With the mutex. Returns the symbols of torch. Throws if a slot cannot be written.
std::vector<std::string> rewrite_new(Importers& importers) {
    const LoadCount count = load_count();
    if (count.unloaded != importers.count.unloaded) {
        importers.seen.clear(); // another object may lie where one was
    }
    importers.count = count;
    std::vector<std::string> names;
    const auto is_new = [&](const LoadedObject& object) {
        const bool is_known = object.base == importers.nccl.base ||
                              importers.seen.contains({object.base, object.path});
        return is_known ? std::size_t{0} : that_matter(importers, object);
    };
    for (LoadedObject& object : loaded_objects(importers.all, is_new)) {
        importers.seen.emplace(object.base, object.path);
        if (object.slots.empty()) {
            continue;
        }
        const auto handle = hold(object);
        if (handle == nullptr) {
            continue;
        }
        std::erase_if(object.slots, [&](const Slot& slot) {
            return !is_ours(importers, object, slot, handle.get());
        });
        rewrite(object.slots, importers.all);
        if (object.name().starts_with(kTorch)) {
            names = symbols_of(object, importers.all);
        }
    }
    return names;
}

// --- what stands in the slots of the interpreter ---

// For all other names the call is the caller's own: what RTLD_NEXT means depends on who calls, so
// the real function is jumped to.
void* on_dlsym(void* handle, const char* name) {
    if (name == nullptr || std::strncmp(name, kOfNccl, std::strlen(kOfNccl)) != 0 ||
        handle == RTLD_NEXT) {
        return dlsym(handle, name);
    }
    void* const found = dlsym(handle, name);
    const Importers& importers = Importers::instance(); // as it was when this slot was rewritten
    if (!importers.nccl.contains(found)) {
        return found;
    }
    look_for_importers();
    const auto call = std::ranges::find_if(
        importers.calls, [&](const auto& each) { return std::strcmp(each.symbol, name) == 0; });
    return call != importers.calls.end() ? call->function : found;
}

// A name without a slash is looked for in places that belong to the caller: so the real function is
// jumped to, and what it loads is found later.
void* on_dlopen(const char* path, int flags) {
    if (path == nullptr || std::strchr(path, '/') == nullptr) {
        return dlopen(path, flags);
    }
    void* const handle = dlopen(path, flags);
    if (handle != nullptr) {
        look_for_importers();
    }
    return handle;
}

LoadedObject nccl_itself() {
    const void* const inside = reinterpret_cast<const void*>(api().ncclCommRegister);
    for (LoadedObject& object :
         loaded_objects({}, [](const LoadedObject&) { return std::size_t{0}; })) {
        if (object.contains(inside)) {
            return std::move(object);
        }
    }
    return {};
}

} // namespace

std::vector<std::string> intercept(const std::vector<Replacement>& calls,
                                   const std::vector<Beside>& beside) {
    Importers& importers = Importers::instance();
    const Guard guard(importers);
    if (!guard && importers.is_lost) {
        return {}; // all that the parent had loaded was looked at there
    }
    if (!guard) {
        throw std::runtime_error("another thread loads or forks for too long: call "
                                 "tracehook.enable() again");
    }
    if (importers.calls.empty()) {
        importers.nccl = nccl_itself();
        importers.calls = calls;
        importers.beside = beside;
        importers.all = calls;
        for (const Beside& each : beside) {
            importers.all.push_back(each.replacement);
        }
        importers.all.push_back({"dlsym", reinterpret_cast<void*>(&on_dlsym)});
        importers.all.push_back({"dlopen", reinterpret_cast<void*>(&on_dlopen)});
    }
    importers.seen.clear();
    return rewrite_new(importers);
}

void look_for_importers() noexcept {
    Importers& importers = Importers::instance();
    importers.wants_look.store(true);
    while (importers.wants_look.load()) {
        RefusedObserver refused;
        try {
            const Guard guard(importers);
            if (!guard) {
                return; // who has the lock looks once more
            }
            importers.wants_look.store(false);
            if (importers.calls.empty() || load_count() == importers.count) {
                continue;
            }
            refused = importers.refused;
            rewrite_new(importers);
            continue;
        } catch (const std::exception&) {
            // Said below, without the lock.
        }
        if (refused) {
            refused();
        }
    }
}

void set_refused_observer(RefusedObserver observer) {
    Importers& importers = Importers::instance();
    if (const Guard guard(importers); guard) {
        importers.refused = std::move(observer);
    }
}

} // namespace tracehook::nccl
