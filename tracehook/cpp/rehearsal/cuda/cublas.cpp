// The emulated cuBLAS and cuBLASLt: handles that are not null, one algorithm for every product, and
// no result. Nothing here has state, so everything may be called from any thread.
#include "cuda_abi.h"
#include "kernel.h"

namespace tracehook::rehearsal::cuda {
namespace {

constexpr int kCublasSuccess = 0;
constexpr size_t kCublasVersion = 130000;

struct Heuristic {
    uint64_t algorithm[8];
    size_t workspace_size;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Heuristic) == 96);

// Callers only pass a handle on, and compare it with null.
int give_handle(void** handle) {
    static char anything;
    *handle = &anything;
    return kCublasSuccess;
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cublasCreate_v2(void** handle) {
    return give_handle(handle);
}

EMU_EXPORT int cublasLtCreate(void** handle) {
    return give_handle(handle);
}

EMU_EXPORT int cublasLtMatmulDescCreate(void** descriptor, int, int) {
    return give_handle(descriptor);
}

EMU_EXPORT int cublasLtMatmulPreferenceCreate(void** preference) {
    return give_handle(preference);
}

EMU_EXPORT int cublasLtMatrixLayoutCreate(void** layout, int, uint64_t, uint64_t, int64_t) {
    return give_handle(layout);
}

EMU_EXPORT size_t cublasLtGetVersion() {
    return kCublasVersion;
}

EMU_EXPORT int cublasGetPointerMode_v2(void*, int* mode) {
    *mode = 0;
    return kCublasSuccess;
}

EMU_EXPORT int cublasGetMathMode(void*, int* mode) {
    *mode = 0;
    return kCublasSuccess;
}

EMU_EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*,
                                              int requested, Heuristic* results, int* count) {
    *count = requested > 0 ? 1 : 0;
    if (*count == 1) {
        *results = {};
    }
    return kCublasSuccess;
}

#define SUCCEED(name)                                                                              \
    EMU_EXPORT int name() {                                                                        \
        return kCublasSuccess;                                                                     \
    }

#define COMPUTE(name)                                                                              \
    EMU_EXPORT int name() {                                                                        \
        tell_of_launch(#name);                                                                     \
        return kCublasSuccess;                                                                     \
    }

#include "cublas_stubs.def"

#undef COMPUTE
#undef SUCCEED
