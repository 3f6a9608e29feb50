#include "kernel.h"

#include "capture.h"
#include "device.h"
#include "devices.h"
#include "gpu.h"
#include "stream_table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <set>

#include <unistd.h>

namespace tracehook::rehearsal::cuda {
namespace {

// What became of kernels that are not torch's. Kernels of one name count once: an autotuner loads
// many.
class Launches {
  public:
    static Launches& instance() { return leaked<Launches>(); }

    void add(Kernel& kernel) {
        count_.fetch_add(1, std::memory_order_relaxed);
        if (!kernel.ran.exchange(true, std::memory_order_relaxed)) {
            const std::lock_guard lock(mutex_);
            if (names_.empty()) {
                first_ = kernel.name;
            }
            names_.insert(kernel.name);
        }
    }

    void tell(int rank) {
        const std::lock_guard lock(mutex_);
        if (names_.empty()) {
            return;
        }
        const std::string who = rank < 0 ? "" : "rank " + std::to_string(rank) + ": ";
        const uint64_t times = count_.load(std::memory_order_relaxed);
        const bool one = names_.size() == 1;
        std::fprintf(stderr,
                     "rehearsal: %s%zu kernel%s of Triton, another compiler or an extension (%s%s) "
                     "%s launched "
                     "%llu time%s and computed nothing: %s results are not what a device gives\n",
                     who.c_str(), names_.size(), one ? "" : "s",
                     one ? "" : "the first: ", first_.c_str(), one ? "was" : "were",
                     static_cast<unsigned long long>(times), times == 1 ? "" : "s",
                     one ? "its" : "their");
    }

  private:
    std::atomic<uint64_t> count_{0};
    // Protects what follows. Nothing is locked while it is held.
    std::mutex mutex_;
    std::string first_;
    std::set<std::string> names_;
};

} // namespace

Status launch_kernel(void* handle, const std::shared_ptr<Kernel>& kernel) {
    const std::shared_ptr<Stream> stream = StreamTable::instance().find(handle);
    if (stream == nullptr ||
        (kernel != nullptr && kernel->device >= 0 && kernel->device != stream->device())) {
        return kInvalidResourceHandle;
    }
    Node::Launch ran;
    if (kernel != nullptr && !host_computes_now()) {
        ran = [kernel](const std::shared_ptr<Stream>&) { Launches::instance().add(*kernel); };
    }
    if (const auto answer = Captures::instance().record(stream, ran)) {
        return *answer;
    }
    if (ran) {
        ran(stream);
    }
    return kSuccess;
}

void spin_if_endless(const void* function, void** arguments, void* handle) {
    constexpr int64_t kEndless = 1LL << 44; // cycles: more than two hours
    if (!is_spin_kernel(function) || *static_cast<const int64_t*>(arguments[0]) < kEndless) {
        return;
    }
    const std::shared_ptr<Stream> stream = StreamTable::instance().find(handle);
    if (stream != nullptr && emu_stream_capturing(handle) == 0) {
        stream->enqueue([] {
            for (;;) {
                pause();
            }
        });
    }
}

int blocks_at_once(int block_size) {
    return std::clamp(gpu().threads_per_multiprocessor / std::max(block_size, 1), 1,
                      gpu().blocks_per_multiprocessor);
}

Module::~Module() {
    for (const auto& [name, kernel] : kernels_) {
        kernels().remove(kernel);
    }
}

void* Module::kernel(const std::string& name) {
    const std::lock_guard lock(mutex_);
    void*& handle = kernels_[name];
    if (handle == nullptr) {
        handle = kernels().insert(std::shared_ptr<Kernel>(new Kernel{name, device_}));
    }
    return handle;
}

void Module::add(const void* handle, const std::string& symbol, const std::string& name) {
    const std::lock_guard lock(mutex_);
    void*& known = kernels_[symbol];
    if (known == nullptr) {
        known = const_cast<void*>(handle);
        kernels().insert_as(known, std::shared_ptr<Kernel>(new Kernel{name, device_}));
    }
}

EMU_EXPORT void emu_tell_of_kernels(int rank) {
    if (!forked_child()) {
        Launches::instance().tell(rank);
    }
}

} // namespace tracehook::rehearsal::cuda
