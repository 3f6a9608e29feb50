// The functions of the runtime and the driver about errors and versions. They work everywhere, also
// in a forked child and without a device.
#include "cuda_abi.h"
#include "runtime_call.h"

#include <algorithm>
#include <iterator>

namespace tracehook::rehearsal::cuda {
namespace {

struct StatusText {
    int status;
    const char* name;
    const char* of_driver;
    const char* text;
};

constexpr StatusText kTexts[] = {
#define STATUS(name, ...) {__VA_ARGS__},
#include "status.def"
#undef STATUS
};

const StatusText& text_of(int status) {
    const auto* const at = std::ranges::find(kTexts, status, &StatusText::status);
    return at == std::end(kTexts) ? *std::rbegin(kTexts) : *at;
}

// The driver has nothing to say of a number that it does not know.
int tell(int status, const char* StatusText::* what, const char** answer) {
    const StatusText& known = text_of(status);
    *answer = known.status == status && known.of_driver != nullptr ? known.*what : nullptr;
    return *answer == nullptr ? kInvalidValue : kSuccess;
}

} // namespace

EMU_EXPORT int cudaGetLastError() {
    count_call(__func__);
    return take_last_error();
}

EMU_EXPORT int cudaPeekAtLastError() {
    count_call(__func__);
    return last_error();
}

EMU_EXPORT const char* cudaGetErrorName(int status) {
    return text_of(status).name;
}

EMU_EXPORT const char* cudaGetErrorString(int status) {
    return text_of(status).text;
}

EMU_EXPORT int cudaDriverGetVersion(int* version) {
    count_call(__func__);
    if (version == nullptr) {
        return remember(kInvalidValue);
    }
    *version = kCudaVersion;
    return kSuccess;
}

EMU_ALIAS(cudaRuntimeGetVersion, cudaDriverGetVersion)

EMU_EXPORT int cuDriverGetVersion(int* version) {
    *version = kCudaVersion;
    return kSuccess;
}

EMU_EXPORT int cuGetErrorName(int status, const char** name) {
    return tell(status, &StatusText::of_driver, name);
}

EMU_EXPORT int cuGetErrorString(int status, const char** text) {
    return tell(status, &StatusText::text, text);
}

} // namespace tracehook::rehearsal::cuda
