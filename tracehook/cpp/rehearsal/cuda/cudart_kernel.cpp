// The runtime's functions about kernels: launches and questions.
// Kernels compute nothing; a launch that is in order succeeds.
#include "cuda_abi.h"
#include "device_properties.h"
#include "gpu.h"
#include "kernel.h"
#include "runtime_call.h"

#include <vector>

namespace tracehook::rehearsal::cuda {
namespace {

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

// A function is what a library registered, or a kernel of cudaLibraryGetKernel.
Status launch(const void* function, void** arguments, void* stream) {
    const std::shared_ptr<Kernel> kernel = kernels().find(const_cast<void*>(function));
    if (kernel == nullptr && somebody_hears_of_launches()) {
        const char* const name = kernel_of_torch(function);
        tell_of_launch(name == nullptr ? "a kernel of torch" : readable(name).c_str());
    }
    return context_call([&] {
        const Status status = launch_kernel(stream, kernel);
        if (status == kSuccess && kernel == nullptr) {
            spin_if_endless(function, arguments, stream);
        }
        return status;
    });
}

} // namespace

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

EMU_EXPORT int cudaLaunchKernel(const void* function, Dim3, Dim3, void** arguments, size_t,
                                void* stream) {
    return launch(function, arguments, stream);
}

EMU_ALIAS(__cudaLaunchKernel, cudaLaunchKernel)
EMU_ALIAS(cudaLaunchCooperativeKernel, cudaLaunchKernel)

EMU_EXPORT int cudaLaunchKernelExC(const LaunchShape* config, const void* function,
                                   void** arguments) {
    return launch(function, arguments, config->stream);
}

EMU_EXPORT int cudaFuncGetAttributes(FunctionAttributes* attributes, const void*) {
    return context_call([&] {
        *attributes = {};
        attributes->max_threads_per_block = kThreadsPerBlock;
        attributes->num_regs = kKernelRegisters;
        attributes->ptx_version = kernel_architecture();
        attributes->binary_version = kernel_architecture();
        attributes->max_dynamic_shared_size_bytes = gpu().shared_per_block_kib << 10;
    });
}

EMU_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*,
                                                             int block_size, size_t) {
    return context_call([&] { *blocks = blocks_at_once(block_size); });
}

EMU_ALIAS(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
          cudaOccupancyMaxActiveBlocksPerMultiprocessor)

} // namespace tracehook::rehearsal::cuda
