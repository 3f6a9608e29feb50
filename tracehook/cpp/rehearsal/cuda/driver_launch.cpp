// The driver's functions that launch kernels, that ask how many fit on a device, and that describe
// tensors for them.
//
// Any thread. In a forked child the functions fail as the runtime's do.
#include "cuda_abi.h"
#include "device_properties.h"
#include "driver_context.h"
#include "gpu.h"
#include "kernel.h"

#include <algorithm>
#include <span>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr unsigned kMostBlocksYZ = 65535;
constexpr unsigned kMostThreadsZ = 64;
constexpr unsigned kMostDimensions = 5;
constexpr uintptr_t kMapAlignment = 64;
constexpr uintptr_t kTensorAlignment = 16;
constexpr int kClusterDimension = 4;

// CUlaunchAttribute. Its value is the shape of a cluster if `id` says so.
struct LaunchAttribute {
    int id;
    int unused;
    Dim3 cluster;
    char rest[52];
};
static_assert(sizeof(LaunchAttribute) == 72);

// CUlaunchConfig.
struct LaunchConfig {
    Dim3 grid;
    Dim3 block;
    unsigned shared;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};
static_assert(offsetof(LaunchConfig, stream) == 32 && sizeof(LaunchConfig) == 56);

// CUtensorMap, which only kernels read.
struct TensorMap {
    uint64_t opaque[16];
};

// What a device refuses, whatever the kernel is.
bool fits(const Dim3& grid, const Dim3& block, unsigned shared) {
    const uint64_t threads = uint64_t{block.x} * block.y * block.z;
    return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= INT32_MAX &&
           grid.y <= kMostBlocksYZ && grid.z <= kMostBlocksYZ && threads > 0 &&
           threads <= kThreadsPerBlock && block.z <= kMostThreadsZ &&
           shared <= static_cast<unsigned>(gpu().shared_per_block_kib) << 10;
}

int launch_from_driver(void* kernel, const Dim3& grid, const Dim3& block, unsigned shared,
                       void* stream) {
    if (!fits(grid, block, shared)) {
        return kInvalidValue;
    }
    const int status = enter_runtime();
    return status != kSuccess ? status : guarded([&] {
        const std::shared_ptr<Kernel> found = kernels().find(kernel);
        return found == nullptr ? kInvalidResourceHandle : launch_kernel(stream, found);
    });
}

bool is_aligned(const void* pointer, uintptr_t to) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % to == 0;
}

int describe(TensorMap* map, unsigned dimensions, const void* tensor) {
    if (dimensions == 0 || dimensions > kMostDimensions || !is_aligned(map, kMapAlignment) ||
        !is_aligned(tensor, kTensorAlignment)) {
        return kInvalidValue;
    }
    *map = {};
    return enter_driver(__func__);
}

} // namespace

EMU_EXPORT int cuLaunchKernel(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                              void* stream, void**, void**) {
    return launch_from_driver(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared,
                              stream);
}

EMU_ALIAS(cuLaunchCooperativeKernel, cuLaunchKernel)

EMU_EXPORT int cuLaunchKernelEx(const LaunchConfig* config, void* kernel, void**, void**) {
    return launch_from_driver(kernel, config->grid, config->block, config->shared, config->stream);
}

EMU_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int block_size,
                                                           size_t) {
    *blocks = blocks_at_once(block_size);
    return enter_driver(__func__);
}

EMU_ALIAS(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
          cuOccupancyMaxActiveBlocksPerMultiprocessor)

EMU_EXPORT int cuOccupancyMaxActiveClusters(int* clusters, void*, const LaunchConfig* config) {
    const std::span attributes(config->attributes, config->attribute_count);
    const auto found = std::ranges::find(attributes, kClusterDimension, &LaunchAttribute::id);
    const unsigned blocks =
        found == attributes.end() ? 1 : found->cluster.x * found->cluster.y * found->cluster.z;
    *clusters = kMultiProcessors / static_cast<int>(std::max(blocks, 1U));
    return enter_driver(__func__);
}

EMU_EXPORT int cuTensorMapEncodeTiled(TensorMap* map, int, unsigned dimensions, void* tensor,
                                      const uint64_t*, const uint64_t*, const unsigned*,
                                      const unsigned*, int, int, int, int) {
    return describe(map, dimensions, tensor);
}

EMU_EXPORT int cuTensorMapEncodeIm2col(TensorMap* map, int, unsigned dimensions, void* tensor,
                                       const uint64_t*, const uint64_t*, const int*, const int*,
                                       unsigned, unsigned, const unsigned*, int, int, int, int) {
    return describe(map, dimensions, tensor);
}

} // namespace tracehook::rehearsal::cuda
