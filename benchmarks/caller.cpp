// Calls NCCL the way libtorch_cuda does: through slots that the interposer rewrites. Its file is
// named libtorch_cuda_caller.so for that. Every function returns nanoseconds for the whole loop.
#include <chrono>
#include <cstddef>
#include <vector>

extern "C" {
int ncclCommRegister(void* comm, void* buffer, std::size_t size, void** handle);
int ncclCommDeregister(void* comm, void* handle);
int ncclGroupStart();
int ncclGroupEnd();
}

namespace {

template <typename Body> double nanoseconds(Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin)
        .count();
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// A call into the communicator that does next to nothing in NCCL, so that what the interposer adds
// can be seen.
EXPORT double time_empty_calls(void* comm, int count) {
    return nanoseconds([&] {
        for (int i = 0; i < count; ++i) {
            ncclCommDeregister(comm, nullptr);
        }
    });
}

EXPORT double time_grouped_calls(void* comm, int count) {
    return nanoseconds([&] {
        for (int i = 0; i < count; ++i) {
            ncclGroupStart();
            ncclCommDeregister(comm, nullptr);
            ncclGroupEnd();
        }
    });
}

// The bare calls that a new communicator over `count` segments needs. Undone again, outside the
// measured time.
EXPORT double time_registrations(void* comm, void** addresses, std::size_t* sizes, int count) {
    std::vector<void*> handles(static_cast<std::size_t>(count));
    const double elapsed = nanoseconds([&] {
        for (int i = 0; i < count; ++i) {
            ncclCommRegister(comm, addresses[i], sizes[i], &handles[static_cast<std::size_t>(i)]);
        }
    });
    for (void* handle : handles) {
        ncclCommDeregister(comm, handle);
    }
    return elapsed;
}
