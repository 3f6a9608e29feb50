// The runtime's functions about device code: registration by the loader, launches and questions.
// Kernels compute nothing; a launch that is in order succeeds.
#include "cuda_abi.h"
#include "device_properties.h"
#include "runtime_call.h"
#include "stream_table.h"

#include <algorithm>
#include <vector>

namespace tracehook::emulator {
namespace {

constexpr int kMaxDynamicShared = 227 << 10;

// Also the first part of cudaLaunchConfig_t.
struct LaunchShape {
    Dim3 grid;
    Dim3 block;
    size_t shared;
    void* stream;
};
static_assert(offsetof(LaunchShape, stream) == 32);

// What the compiler's launch syntax leaves for the stub function that it calls next.
std::vector<LaunchShape>& pending_launches() {
    thread_local std::vector<LaunchShape> stack;
    return stack;
}

// A captured kernel is a node that does nothing.
Status launch(void* handle) {
    return context_call([&] {
        const std::shared_ptr<Stream> stream = StreamTable::instance().find(handle);
        return stream == nullptr ? kInvalidResourceHandle
                                 : Captures::instance().record(stream, {}).value_or(kSuccess);
    });
}

Status occupancy(int* blocks, int block_size) {
    return context_call([&] {
        *blocks = std::clamp(kThreadsPerMultiProcessor / std::max(block_size, 1), 1,
                             kBlocksPerMultiProcessor);
        return kSuccess;
    });
}

} // namespace
} // namespace tracehook::emulator

using namespace tracehook::emulator;

EMU_EXPORT void** __cudaRegisterFatBinary(void*) {
    static void* handle = nullptr;
    return &handle;
}

EMU_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}

EMU_EXPORT void __cudaUnregisterFatBinary(void**) {}

EMU_EXPORT char __cudaInitModule(void**) {
    return 1;
}

EMU_EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*,
                                       void*, void*, int*) {}

EMU_EXPORT unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared,
                                                void* stream) {
    pending_launches().push_back({grid, block, shared, stream});
    return 0;
}

EMU_EXPORT int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void** stream) {
    std::vector<LaunchShape>& stack = pending_launches();
    if (stack.empty()) {
        return kUnknown;
    }
    const LaunchShape& shape = stack.back();
    *grid = shape.grid;
    *block = shape.block;
    *shared = shape.shared;
    *stream = shape.stream;
    stack.pop_back();
    return kSuccess;
}

EMU_EXPORT int __cudaGetKernel(const void** kernel, const void* function) {
    *kernel = function;
    return kSuccess;
}

EMU_EXPORT int __cudaLaunchKernel(const void*, Dim3, Dim3, void**, size_t, void* stream) {
    return launch(stream);
}

EMU_EXPORT int cudaLaunchKernel(const void*, Dim3, Dim3, void**, size_t, void* stream) {
    return launch(stream);
}

EMU_EXPORT int cudaLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, size_t, void* stream) {
    return launch(stream);
}

EMU_EXPORT int cudaLaunchKernelExC(const LaunchShape* config, const void*, void**) {
    return launch(config->stream);
}

EMU_EXPORT int cudaFuncGetAttributes(FunctionAttributes* attributes, const void*) {
    return context_call([&] {
        *attributes = {};
        attributes->max_threads_per_block = kThreadsPerBlock;
        attributes->num_regs = 32;
        attributes->ptx_version = 90;
        attributes->binary_version = 90;
        attributes->max_dynamic_shared_size_bytes = kMaxDynamicShared;
        return kSuccess;
    });
}

EMU_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*,
                                                             int block_size, size_t) {
    return occupancy(blocks, block_size);
}

EMU_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                      int block_size, size_t,
                                                                      unsigned) {
    return occupancy(blocks, block_size);
}
