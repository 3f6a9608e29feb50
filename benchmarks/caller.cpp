// Calls NCCL the way libtorch_cuda does, through slots that the interposer rewrites; or, if told to
// be plain, through addresses that it looked up itself. Every function returns nanoseconds for the
// whole loop.
#include <chrono>
#include <cstddef>
#include <dlfcn.h>
#include <vector>

extern "C" {
int ncclCommRegister(void* comm, void* buffer, std::size_t size, void** handle);
int ncclCommDeregister(void* comm, void* handle);
int ncclGroupStart();
int ncclGroupEnd();
}

namespace {

template <typename Function> Function* real(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// As the linker's: a jump to what a table says.
decltype(&ncclCommDeregister) real_deregister = nullptr;
decltype(&ncclGroupStart) real_start = nullptr;
decltype(&ncclGroupEnd) real_end = nullptr;

void look_up() {
    real_deregister = real<decltype(ncclCommDeregister)>("ncclCommDeregister");
    real_start = real<decltype(ncclGroupStart)>("ncclGroupStart");
    real_end = real<decltype(ncclGroupEnd)>("ncclGroupEnd");
}

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
EXPORT double time_empty_calls(void* comm, int count, int plain) {
    look_up();
    if (plain != 0) {
        return nanoseconds([&] {
            for (int i = 0; i < count; ++i) {
                real_deregister(comm, nullptr);
            }
        });
    }
    return nanoseconds([&] {
        for (int i = 0; i < count; ++i) {
            ncclCommDeregister(comm, nullptr);
        }
    });
}

EXPORT double time_grouped_calls(void* comm, int count, int plain) {
    look_up();
    if (plain != 0) {
        return nanoseconds([&] {
            for (int i = 0; i < count; ++i) {
                real_start();
                real_deregister(comm, nullptr);
                real_end();
            }
        });
    }
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
    look_up();
    const auto real_register = real<decltype(ncclCommRegister)>("ncclCommRegister");
    std::vector<void*> handles(static_cast<std::size_t>(count));
    const double elapsed = nanoseconds([&] {
        for (int i = 0; i < count; ++i) {
            real_register(comm, addresses[i], sizes[i], &handles[static_cast<std::size_t>(i)]);
        }
    });
    for (void* handle : handles) {
        real_deregister(comm, handle);
    }
    return elapsed;
}
