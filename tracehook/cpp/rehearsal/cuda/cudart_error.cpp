// The runtime's functions about errors and versions. They work everywhere, also in a forked child
// and without a device.
#include "cuda_abi.h"
#include "runtime_call.h"

#include <algorithm>
#include <iterator>

namespace tracehook::rehearsal::cuda {
namespace {

struct StatusText {
    Status status;
    const char* name;
    const char* text;
};

constexpr StatusText kTexts[] = {
    {kSuccess, "cudaSuccess", "no error"},
    {kInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {kMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {kInitializationError, "cudaErrorInitializationError", "initialization error"},
    {kInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {kNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {kInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {kDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {kMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {kOperatingSystem, "cudaErrorOperatingSystem", "OS call failed or operation not supported"},
    {kInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {kIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {kNotReady, "cudaErrorNotReady", "device not ready"},
    {kPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {kPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {kAssert, "cudaErrorAssert", "device-side assert triggered"},
    {kHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {kHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {kNotSupported, "cudaErrorNotSupported", "operation not supported by the emulated runtime"},
    {kStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {kStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {kStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {kStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {kStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {kStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {kStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {kCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {kStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {kUnknown, "cudaErrorUnknown", "unknown error"},
};

const StatusText& text_of(int status) {
    const auto at =
        std::find_if(std::begin(kTexts), std::end(kTexts),
                     [status](const StatusText& known) { return known.status == status; });
    return at == std::end(kTexts) ? *std::rbegin(kTexts) : *at;
}

int version_call(int* version) {
    count_call(__func__);
    if (version == nullptr) {
        return remember(kInvalidValue);
    }
    *version = kCudaVersion;
    return kSuccess;
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

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
    return version_call(version);
}

EMU_EXPORT int cudaRuntimeGetVersion(int* version) {
    return version_call(version);
}
