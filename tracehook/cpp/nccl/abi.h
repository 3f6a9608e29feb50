// The part of NCCL's C ABI that tracehook speaks, written down once.
//
// tracehook never includes nccl.h: one build has to work with every NCCL that a torch ships. What
// stands here has been stable since NCCL 2.18 (each later field is named with the version that
// added it). Used by the interposer, which sits in front of the real library, and by the emulated
// NCCL of a rehearsal.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tracehook::nccl {

using Comm = void*;   // ncclComm_t
using Stream = void*; // cudaStream_t
using Window = void*; // ncclWindow_t
struct SignalDesc;    // ncclWaitSignalDesc_t: only NCCL reads it
// ncclDevCommRequirements_t, ncclDevComm_t; 2.28. Each version has others: only NCCL and kernels
// read them.
struct DevCommRequirements;
struct DevComm;

// ncclResult_t
enum Result : int {
    kSuccess = 0,
    kUnhandledCudaError = 1,
    kSystemError = 2,
    kInternalError = 3,
    kInvalidArgument = 4,
    kInvalidUsage = 5,
    kRemoteError = 6,
    kInProgress = 7,
    kTimeout = 8, // 2.30
};

// ncclDataType_t
enum DataType : int {
    kInt8 = 0,
    kUint8 = 1,
    kInt32 = 2,
    kUint32 = 3,
    kInt64 = 4,
    kUint64 = 5,
    kFloat16 = 6,
    kFloat32 = 7,
    kFloat64 = 8,
    kBfloat16 = 9,
    kFloat8e4m3 = 10, // 2.24
    kFloat8e5m2 = 11, // 2.24
};

// ncclRedOp_t; values from kNumOps up are made by ncclRedOpCreatePreMulSum
enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4, kNumOps = 5 };

inline constexpr int kWindowCollSymmetric = 1; // NCCL_WIN_COLL_SYMMETRIC; 2.27
inline constexpr int kSuspendMemory = 1;       // NCCL_SUSPEND_MEM; 2.29.7

// ncclCommMemStat_t; 2.29.7
enum MemoryStat : int {
    kMemorySuspendable = 0, // also of a communicator that is suspended
    kMemorySuspended = 1,   // 1: it is
    kMemoryPersistent = 2,
    kMemoryTotal = 3,
};

// Bytes of one element; 0 for a type that this table does not know.
constexpr std::size_t element_size(int type) noexcept {
    switch (type) {
    case kInt8:
    case kUint8:
    case kFloat8e4m3:
    case kFloat8e5m2:
        return 1;
    case kFloat16:
    case kBfloat16:
        return 2;
    case kInt32:
    case kUint32:
    case kFloat32:
        return 4;
    case kInt64:
    case kUint64:
    case kFloat64:
        return 8;
    default:
        return 0;
    }
}

// Of a buffer with `count` elements of `type` for each of `ranks`; the largest number if there is
// no such many.
constexpr std::size_t bytes_of(std::size_t count, int type, int ranks = 1) noexcept {
    std::size_t product = 0;
    return __builtin_mul_overflow(count, element_size(type) * static_cast<std::size_t>(ranks),
                                  &product)
               ? ~std::size_t{0}
               : product;
}

struct UniqueId {
    char internal[128];
};

// ncclConfig_t. `size` says how many bytes the caller's header knew; a field beyond it must not be
// read.
struct Config {
    std::size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char* net_name;
    int split_share;       // 2.18
    int traffic_class;     // 2.26
    const char* comm_name; // 2.27
    int collnet_enable;    // 2.27
    int cta_policy;        // 2.27
    int shrink_share;      // 2.27
};

// ncclCollConfig_t, of one call; 2.31. `size` as in Config.
struct CollConfig {
    std::size_t size;
    unsigned int magic;
    unsigned int version;
    const void* extensions; // a vendor's options
    int min_ctas;
    int max_ctas;
    int nvls_ctas;
    int cga_cluster_size;
    const char* algorithms; // null or "": NCCL chooses
    int force_algorithms;
    int cta_policy;
    std::uint64_t tag;       // for profilers
    void* launch_completion; // cudaEvent_t; 2.32
};

// ncclSimInfo_t; 2.22
struct Simulation {
    std::size_t size;
    unsigned int magic;
    unsigned int version;
    float estimated_time;
};

inline constexpr unsigned int kConfigMagic = 0xcafebeef; // NCCL_API_MAGIC
inline constexpr int kConfigUndefined = -2147483647 - 1; // NCCL_CONFIG_UNDEF_INT
inline constexpr int kSplitNoColor = -1;                 // NCCL_SPLIT_NOCOLOR

} // namespace tracehook::nccl
