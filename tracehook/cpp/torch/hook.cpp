// The hook library: the only file that includes torch. Built once per torch minor; see hook_abi.h
// for its contract.
#include "torch/hook_abi.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

template <typename Body> int guarded(char* error, uint32_t error_size, Body&& body) {
    const char* what = "unknown exception";
    try {
        body();
        return 0;
    } catch (const c10::Error& failure) {
        what = failure.what_without_backtrace();
        std::snprintf(error, error_size, "%s", what);
    } catch (const std::exception& failure) {
        what = failure.what();
        std::snprintf(error, error_size, "%s", what);
    } catch (...) {
        std::snprintf(error, error_size, "%s", what);
    }
    return -1;
}

std::atomic<const int32_t*> open_scopes{nullptr};

std::atomic<const uint64_t*> watched_span{nullptr};

bool free_is_watched(uint64_t address) {
    const uint64_t* span = watched_span.load(std::memory_order_relaxed);
    return span != nullptr && address < __atomic_load_n(span + 1, __ATOMIC_RELAXED) &&
           address >= __atomic_load_n(span, __ATOMIC_RELAXED);
}

bool is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    // CUDA never captures the default stream.
    return stream != nullptr && cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status == cudaStreamCaptureStatusActive;
}

// torch counts ids of pools by their first number where a graph makes its own, and by the second
// one for MemPool and graph_pool_handle().
int32_t kind_of(const c10::MempoolId_t& pool, cudaStream_t stream) {
    if (pool.first == 0 && pool.second == 0) {
        return TH_POOL_DEFAULT;
    }
    return pool.first != 0 || is_captured(stream) ? TH_POOL_GRAPH : TH_POOL_PRIVATE;
}

bool blocks_are_watched() {
    const int32_t* scopes = open_scopes.load(std::memory_order_relaxed);
    return scopes != nullptr && __atomic_load_n(scopes, __ATOMIC_RELAXED) != 0;
}

// Runs for every allocator event of the process. Four kinds of segment events always go on.
// Allocations of blocks do so while a scope is open, frees of blocks inside the bank's span. All
// others leave at once.
void forward(const allocator::TraceEntry& entry, th_segment_callback callback, void* user) {
    int32_t action = 0;
    switch (entry.action_) {
    case allocator::TraceEntry::SEGMENT_ALLOC:
        action = TH_SEGMENT_ALLOC;
        break;
    case allocator::TraceEntry::SEGMENT_FREE:
        action = TH_SEGMENT_FREE;
        break;
    case allocator::TraceEntry::SEGMENT_MAP:
        action = TH_SEGMENT_MAP;
        break;
    case allocator::TraceEntry::SEGMENT_UNMAP:
        action = TH_SEGMENT_UNMAP;
        break;
    case allocator::TraceEntry::ALLOC:
        if (!blocks_are_watched()) {
            return;
        }
        action = TH_BLOCK_ALLOC;
        break;
    case allocator::TraceEntry::FREE_REQUESTED:
    case allocator::TraceEntry::FREE_COMPLETED:
        if (!free_is_watched(entry.addr_)) {
            return;
        }
        action =
            entry.action_ == allocator::TraceEntry::FREE_REQUESTED ? TH_BLOCK_FREE : TH_BLOCK_FREED;
        break;
    default:
        return;
    }
    const th_segment_event event{
        sizeof(th_segment_event),
        action,
        entry.device_,
        action == TH_SEGMENT_MAP || action == TH_SEGMENT_UNMAP,
        static_cast<uint64_t>(entry.addr_),
        entry.size_,
        action == TH_SEGMENT_ALLOC
            ? kind_of(entry.mempool_, static_cast<cudaStream_t>(entry.stream_))
            : TH_POOL_DEFAULT,
        0};
    callback(user, &event);
}

int describe(th_allocator_info* info, char* error, uint32_t error_size) {
    return guarded(error, error_size, [&] {
        auto* current = allocator::get();
        info->initialized = current->initialized();
        std::snprintf(info->name, sizeof(info->name), "%s", current->name().c_str());
        info->caching = current->isEnabled();
        info->expandable_segments =
            c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
    });
}

int attach(th_segment_callback callback, void* user, char* error, uint32_t error_size) {
    return guarded(error, error_size, [&] {
        allocator::attachAllocatorTraceTracker(
            [callback, user](const allocator::TraceEntry& entry) {
                forward(entry, callback, user);
            });
    });
}

int snapshot(th_segment_callback callback, void* user, char* error, uint32_t error_size) {
    return guarded(error, error_size, [&] {
        const auto info = allocator::get()->snapshot({0, 0}, /*include_traces=*/false);
        for (const auto& segment : info.segments) {
            const th_segment_event event{sizeof(th_segment_event),
                                         TH_SEGMENT_LIVE,
                                         static_cast<int32_t>(segment.device),
                                         segment.is_expandable,
                                         static_cast<uint64_t>(segment.address),
                                         segment.total_size,
                                         kind_of(segment.owner_private_pool_id, nullptr),
                                         0};
            callback(user, &event);
        }
    });
}

void watch_blocks(const int32_t* scopes) {
    open_scopes.store(scopes, std::memory_order_relaxed);
}

void watch_frees(const uint64_t* span) {
    watched_span.store(span, std::memory_order_relaxed);
}

c10::MempoolId_t pool_id(const uint64_t pool[2]) {
    return {pool[0], pool[1]};
}

int begin_pool(int32_t device, const uint64_t pool[2], int32_t (*mine)(void* user), void* user,
               char* error, uint32_t error_size) {
    return guarded(error, error_size, [&] {
        allocator::get()->beginAllocateToPool(
            static_cast<c10::DeviceIndex>(device), pool_id(pool),
            [mine, user](cudaStream_t) { return mine(user) != 0; });
    });
}

int end_pool(int32_t device, const uint64_t pool[2], char* error, uint32_t error_size) {
    return guarded(error, error_size, [&] {
        const auto index = static_cast<c10::DeviceIndex>(device);
        allocator::get()->endAllocateToPool(index, pool_id(pool));
        allocator::get()->releasePool(index, pool_id(pool));
    });
}

// torch has no question for this. So a pool without memory is made and given up: torch refuses to
// empty it while a graph is captured (before 2.13, also while any pool of the device is begun). It
// keeps what it refused to empty, so a later question empties that too.
int32_t quiet(int32_t device) {
    static std::atomic<uint64_t> asked{0};
    static std::mutex guard;
    static auto& refused = *new std::unordered_map<int32_t, std::vector<c10::MempoolId_t>>;
    // Nobody else has such an id: torch counts up from 0. torch hashes the first number alone.
    const c10::MempoolId_t probe{~uint64_t{0} - asked.fetch_add(1), 1};
    char error[1];
    const auto index = static_cast<c10::DeviceIndex>(device);
    const bool is_made = guarded(error, sizeof(error), [&] {
                             allocator::get()->createOrIncrefPool(index, probe);
                             allocator::get()->releasePool(index, probe);
                         }) == 0;
    const bool is_quiet =
        is_made && guarded(error, sizeof(error), [&] { allocator::get()->emptyCache(probe); }) == 0;
    std::vector<c10::MempoolId_t> again;
    {
        const std::lock_guard held(guard); // not around a call into torch
        if (!is_quiet && is_made) {
            refused[device].push_back(probe);
        } else if (is_quiet) {
            again.swap(refused[device]);
        }
    }
    for (const c10::MempoolId_t& left : again) {
        guarded(error, sizeof(error), [&] { allocator::get()->emptyCache(left); });
    }
    return is_quiet ? 1 : 0;
}

int drop_pool(int32_t device, const uint64_t pool[2], char* error, uint32_t error_size) {
    return guarded(error, error_size, [&] {
        allocator::get()->releasePool(static_cast<c10::DeviceIndex>(device), pool_id(pool));
    });
}

void empty_pool(const uint64_t pool[2]) {
    char refusal[1]; // the device is not quiet: torch empties the pool later
    guarded(refusal, sizeof(refusal), [&] { allocator::get()->emptyCache(pool_id(pool)); });
}

int settle(int32_t device, char* error, uint32_t error_size) {
    return guarded(error, error_size, [&] {
        const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
        allocator::get()->allocate(1); // and given back: torch has no other way to ask for it
    });
}

int32_t capturing(int32_t device) {
    return is_captured(
        c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream());
}

} // namespace

#define TH_TEXT(x) #x
#define TH_VERSION(major, minor, patch) TH_TEXT(major) "." TH_TEXT(minor) "." TH_TEXT(patch)

extern "C" __attribute__((visibility("default"))) const th_hook_api* th_hook_get_api(void) {
    static const th_hook_api api{
        sizeof(th_hook_api),
        TH_VERSION(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH),
        describe,
        attach,
        snapshot,
        watch_blocks,
        begin_pool,
        end_pool,
        capturing,
        TH_BLOCK_FREED,
        quiet,
        drop_pool,
        empty_pool,
        watch_frees,
        settle,
        TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)};
    return &api;
}
