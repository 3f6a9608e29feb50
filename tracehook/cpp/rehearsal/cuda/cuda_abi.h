// The part of the CUDA 13 binary interface that the emulated runtime speaks: status codes,
// constants and the structures that callers hand in to be filled. Layouts are those of the public
// headers of CUDA 13.0; sizes are asserted.
//
// Handles (streams, events, graphs, ...) are plain `void*` here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

// Exports the function `of` of the same file by one more name, under which it may have more
// arguments, or fewer, of those that nobody looks at. Faults know it by the first name.
#define EMU_ALIAS(name, of)                                                                        \
    extern "C" __attribute__((visibility("default"), alias(#of))) decltype(of) name;

namespace tracehook::rehearsal::cuda {

enum Status : int {
#define STATUS(name, number, ...) name = number,
#include "status.def"
#undef STATUS
};

enum MemoryType : int { kUnregisteredMemory = 0, kHostMemory = 1, kDeviceMemory = 2 };

inline constexpr int kInvalidDeviceId = -2;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;

// Of cudaEventRecordWithFlags and cudaStreamWaitEvent: a node of a graph instead of an order in it.
inline constexpr unsigned kEventExternal = 1;

inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;

// The special stream handles that stand for the legacy and the per-thread default stream.
inline constexpr uintptr_t kLegacyStreamHandle = 1;
inline constexpr uintptr_t kPerThreadStreamHandle = 2;

inline constexpr int kCudaVersion = 13000;

struct Dim3 {
    unsigned x, y, z;
};

struct PointerAttributes {
    int type;
    int device;
    void* device_pointer;
    void* host_pointer;
    long reserved[8];
};
static_assert(sizeof(PointerAttributes) == 88);

struct FunctionAttributes {
    size_t shared_const_and_local_bytes[3];
    int max_threads_per_block;
    int num_regs;
    int ptx_version;
    int binary_version;
    int cache_mode_ca;
    int max_dynamic_shared_size_bytes;
    int preferred_shmem_carveout;
    int cluster[6];
    int reserved[16];
};
static_assert(sizeof(FunctionAttributes) == 144);

struct IpcHandle {
    char reserved[64];
};

// What the body of a call returns; one that returns nothing succeeds.
template <typename Body, typename... Arguments>
auto outcome(Body&& body, Arguments&&... arguments) {
    if constexpr (std::is_void_v<std::invoke_result_t<Body, Arguments...>>) {
        body(std::forward<Arguments>(arguments)...);
        return kSuccess;
    } else {
        return body(std::forward<Arguments>(arguments)...);
    }
}

// Answers a caller who may not want to know, and then hands in null.
template <typename Value> void give(Value* where, std::type_identity_t<Value> value) {
    if (where != nullptr) {
        *where = value;
    }
}

} // namespace tracehook::rehearsal::cuda
