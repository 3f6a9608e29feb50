#include "ipc_export.h"

#include "backing.h"
#include "device.h"
#include "unwritten.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

namespace tracehook::rehearsal::cuda {
namespace {

// Process ids have at most 22 bits.
constexpr off_t kProcesses = 1L << 22;
constexpr off_t kLocks = 1L << 62;

off_t locks_of(uint64_t offset) {
    return kLocks + static_cast<off_t>(offset / kGranularity) * kProcesses;
}

// A process that has the range open, or 0.
int opener_of(uint64_t offset) {
    struct flock question{};
    question.l_type = F_WRLCK;
    question.l_whence = SEEK_SET;
    question.l_start = locks_of(offset);
    question.l_len = kProcesses;
    if (fcntl(Backing::instance().file(), F_OFD_GETLK, &question) != 0 ||
        question.l_type == F_UNLCK) {
        return 0;
    }
    return static_cast<int>(question.l_start - locks_of(offset));
}

// Should it fail, others find no number there, and refuse the handle.
bool write_number(int file, uint64_t at, uint64_t number) {
    return pwrite(file, &number, sizeof number, static_cast<off_t>(at)) == sizeof number;
}

} // namespace

// Unlike those of another process, which may once have had the same id.
IpcExports::IpcExports() {
    if (getrandom(&last_number_, sizeof last_number_, 0) != sizeof last_number_) {
        last_number_ = static_cast<uint64_t>(getpid()) << 32;
    }
}

ExportedRange IpcExports::publish(const Allocation& allocation) {
    Unwritten::instance().open_to_others(*allocation.physical);
    const Backing& backing = Backing::instance();
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = published_.try_emplace(allocation.offset);
    ExportedRange& range = at->second;
    if (is_new) {
        last_number_ += last_number_ == UINT64_MAX ? 2 : 1; // never 0, which a freed range has
        range = {getpid(),          backing.file(), allocation.offset,
                 allocation.mapped, last_number_,   backing.word_of(allocation.offset)};
        write_number(range.file, range.number_at, range.number);
    }
    return range;
}

// First the number, then the question: an importer does it the other way round, so that at least
// one of the two notices the other.
void IpcExports::withdraw(const Allocation& allocation) {
    {
        const std::lock_guard lock(mutex_);
        const auto at = published_.find(allocation.offset);
        if (at == published_.end()) {
            return;
        }
        write_number(at->second.file, at->second.number_at, 0);
        published_.erase(at);
    }
    const int process = opener_of(allocation.offset);
    const Observer observer = observer_.load();
    if (process != 0 && observer != nullptr) {
        observer(allocation.base, allocation.size, process);
    }
}

bool IpcExports::mark_open(int file, const ExportedRange& range) {
    struct flock mark{};
    mark.l_type = F_RDLCK;
    mark.l_whence = SEEK_SET;
    mark.l_start = locks_of(range.offset) + getpid();
    mark.l_len = 1;
    return fcntl(file, F_OFD_SETLK, &mark) == 0;
}

bool IpcExports::is_live(int file, const ExportedRange& range) {
    uint64_t number = 0;
    return pread(file, &number, sizeof number, static_cast<off_t>(range.number_at)) ==
               sizeof number &&
           number == range.number && number != 0;
}

EMU_EXPORT void emu_set_open_free_observer(void (*observer)(uintptr_t base, size_t size,
                                                            int process)) {
    IpcExports::instance().observe(observer);
}

} // namespace tracehook::rehearsal::cuda
