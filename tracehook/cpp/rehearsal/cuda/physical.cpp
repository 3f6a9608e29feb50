#include "physical.h"

#include "backing.h"
#include "devices.h"
#include "leaked.h"

#include <cerrno>
#include <cstdio>
#include <mutex>
#include <set>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tracehook::rehearsal::cuda {
namespace {

// The name of a shareable file says of which device it is; its size is that of the memory.
constexpr const char* kName = "tracehook-shareable-memory-of-device-%d";
std::atomic<uint64_t> next_number{1};
constexpr uint64_t kFabricMagic = 0x6362'6166'6b68'6374;
constexpr const char* kLink = "/memfd:tracehook-shareable-memory-of-device-%d";

// A real handle is no descriptor, so a job may have more of them than it is allowed descriptors.
bool raise_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) {
        return false;
    }
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// What `make` returns, a descriptor or -1.
template <typename Make> int descriptor_of(Make&& make) {
    const int made = make();
    return made >= 0 || errno != EMFILE || !raise_limit() ? made : make();
}

int duplicate(int file) {
    return descriptor_of([=] { return fcntl(file, F_DUPFD_CLOEXEC, 0); });
}

int visible_index(int physical) {
    for (int device = 0; device < device_count(); ++device) {
        if (physical_index(device) == physical) {
            return device;
        }
    }
    return -1;
}

// The descriptors that a forked child must not keep: memory would outlive its last user.
struct Descriptors {
    std::mutex mutex; // protects `open`; held across fork(); nothing is locked while it is held
    std::set<int> open;
};

Descriptors& descriptors() {
    return leaked<Descriptors>();
}

// Once: a lock that each kind of maker took again would end every fork.
void follow_forks() {
    static const int watched =
        pthread_atfork([] { descriptors().mutex.lock(); }, [] { descriptors().mutex.unlock(); },
                       [] {
                           for (const int inherited : descriptors().open) {
                               close(inherited);
                           }
                           // A grandchild must not close what has these numbers by then.
                           descriptors().open.clear();
                           descriptors().mutex.unlock();
                       });
    static_cast<void>(watched);
}

// What `make` returns, from its first moment among them.
template <typename Make> int kept(Make&& make) {
    follow_forks();
    const std::lock_guard lock(descriptors().mutex);
    const int file = make();
    if (file >= 0) {
        descriptors().open.insert(file);
    }
    return file;
}

void forget(int file) {
    const std::lock_guard lock(descriptors().mutex);
    descriptors().open.erase(file);
    close(file);
}

} // namespace

Physical::Physical(Origin origin, int types, int file, uint64_t offset, size_t size, int device)
    : origin_(origin), types_(types), file_(file), offset_(offset), size_(size), device_(device),
      number_(next_number.fetch_add(1)) {}

Physical::~Physical() {
    if (is_shareable()) {
        forget(file_);
    } else {
        Backing::instance().give_back(offset_, size_);
    }
    if (origin_ != Origin::kImported) {
        Backing::instance().discharge(size_, device_);
    }
}

Physical::Pointer Physical::plain(size_t size, int device) {
    Backing& backing = Backing::instance();
    if (!backing.charge(size, device)) {
        return nullptr;
    }
    if (const auto offset = backing.take(size)) {
        return Pointer(new Physical(Origin::kPlain, 0, backing.file(), *offset, size, device));
    }
    backing.discharge(size, device);
    return nullptr;
}

Physical::Pointer Physical::shareable(size_t size, int device, int types) {
    Backing& backing = Backing::instance();
    if (!backing.charge(size, device)) {
        return nullptr;
    }
    char name[64];
    std::snprintf(name, sizeof name, kName, physical_index(device));
    const int file =
        kept([&] { return descriptor_of([&] { return memfd_create(name, MFD_CLOEXEC); }); });
    if (file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0) {
        return Pointer(new Physical(Origin::kShareable, types, file, 0, size, device));
    }
    if (file >= 0) {
        forget(file);
    }
    backing.discharge(size, device);
    return nullptr;
}

Status Physical::import(const FabricHandle& handle, Pointer& memory) {
    if (handle.magic != kFabricMagic) {
        return kInvalidValue;
    }
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
    // Whatever the number of a stale handle leads to by now, opening it must not wait.
    const int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) {
        return kInvalidValue;
    }
    struct stat facts{};
    Status status = kInvalidValue;
    if (fstat(file, &facts) == 0 && facts.st_ino == handle.inode) {
        status = import(file, memory, kFabric);
    }
    close(file);
    return status;
}

Status Physical::import(int descriptor, Pointer& memory, int types) {
    char link[64];
    char target[128] = {};
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int physical = -1;
    struct stat facts{};
    if (readlink(link, target, sizeof target - 1) < 0 ||
        std::sscanf(target, kLink, &physical) != 1 || fstat(descriptor, &facts) != 0) {
        return kInvalidValue;
    }
    const int device = visible_index(physical);
    if (device < 0) {
        return kInvalidDevice;
    }
    const int file = kept([=] { return duplicate(descriptor); });
    if (file < 0) {
        return kOperatingSystem;
    }
    memory = Pointer(new Physical(Origin::kImported, types, file, 0,
                                  static_cast<size_t>(facts.st_size), device));
    return kSuccess;
}

int Physical::share() const {
    return (types_ & kFileDescriptor) != 0 ? duplicate(file_) : -1;
}

bool Physical::share(FabricHandle& handle) const {
    struct stat facts{};
    if ((types_ & kFabric) == 0 || fstat(file_, &facts) != 0) {
        return false;
    }
    handle = {kFabricMagic, facts.st_ino, getpid(), file_, {}};
    return true;
}

bool Physical::map(void* address, size_t offset, size_t size) const {
    if (mmap(address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, file_,
             static_cast<off_t>(offset_ + offset)) == MAP_FAILED) {
        return false;
    }
    if (is_shareable()) {
        madvise(address, size, MADV_DONTFORK);
    }
    return true;
}

} // namespace tracehook::rehearsal::cuda
