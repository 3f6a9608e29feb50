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

} // namespace

EMU_EXPORT size_t cublasLtGetVersion() {
    return kCublasVersion;
}

EMU_EXPORT int cublasGetPointerMode_v2(void*, int* mode) {
    *mode = 0;
    return kCublasSuccess;
}

EMU_ALIAS(cublasGetMathMode, cublasGetPointerMode_v2)

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

// Callers only pass a handle on, and compare it with null.
#define GIVE_HANDLE(name)                                                                          \
    EMU_EXPORT int name(void** handle) {                                                           \
        static char anything;                                                                      \
        *handle = &anything;                                                                       \
        return kCublasSuccess;                                                                     \
    }

#define COMPUTE(name)                                                                              \
    EMU_EXPORT int name() {                                                                        \
        tell_of_launch(#name);                                                                     \
        return kCublasSuccess;                                                                     \
    }

#define COMPUTE_EACH_TYPE(name)                                                                    \
    COMPUTE(cublasS##name)                                                                         \
    COMPUTE(cublasD##name)                                                                         \
    COMPUTE(cublasC##name)                                                                         \
    COMPUTE(cublasZ##name)

#include "cublas_stubs.def"

#undef COMPUTE_EACH_TYPE
#undef COMPUTE
#undef GIVE_HANDLE
#undef SUCCEED

} // namespace tracehook::rehearsal::cuda
