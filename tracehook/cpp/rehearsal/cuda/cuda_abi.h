// The part of the CUDA 13 binary interface that the emulated runtime speaks: status codes,
// constants and the structures that callers hand in to be filled. Layouts are those of the public
// headers of CUDA 13.0; sizes are asserted.
//
// Handles (streams, events, graphs, ...) are plain `void*` here.
#pragma once

#include <cstddef>
#include <cstdint>

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

namespace tracehook::rehearsal::cuda {

enum Status : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kMemoryAllocation = 2,
    kInitializationError = 3,
    kInvalidSymbol = 13,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kDeviceUninitialized = 201,
    kMapBufferObjectFailed = 205,
    kPeerAccessUnsupported = 217,
    kOperatingSystem = 304,
    kInvalidResourceHandle = 400,
    kIllegalState = 401,
    kNotReady = 600,
    kPeerAccessAlreadyEnabled = 704,
    kAssert = 710,
    kHostMemoryAlreadyRegistered = 712,
    kHostMemoryNotRegistered = 713,
    kNotSupported = 801,
    kStreamCaptureUnsupported = 900,
    kStreamCaptureInvalidated = 901,
    kStreamCaptureMerge = 902,
    kStreamCaptureUnmatched = 903,
    kStreamCaptureUnjoined = 904,
    kStreamCaptureIsolation = 905,
    kStreamCaptureImplicit = 906,
    kCapturedEvent = 907,
    kStreamCaptureWrongThread = 908,
    kUnknown = 999,
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

} // namespace tracehook::rehearsal::cuda
