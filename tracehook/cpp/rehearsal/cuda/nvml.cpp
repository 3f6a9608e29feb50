// The emulated libnvidia-ml.so.1: the devices of the machine, as PyTorch counts them without
// initialising CUDA, and as its out-of-memory message asks for the processes on them.
//
// Links to nothing of the emulated runtime: to count devices must not make the process a user of
// CUDA. Any thread.
#include "cuda_abi.h"
#include "identity.h"

#include <cstring>
#include <string_view>

#include <strings.h>

namespace tracehook::rehearsal::cuda {
namespace {

enum NvmlStatus : int {
    kNvmlSuccess = 0,
    kNvmlInvalidArgument = 2,
    kNvmlNotSupported = 3,
    kNvmlNotFound = 6,
    kNvmlInsufficientSize = 7,
    kNvmlVersionMismatch = 25,
};

struct NvmlMemory {
    unsigned long long total, available, used;
};

// nvmlGpuFabricInfoV_t, as far as its version 2 goes; version 3 has one more byte behind it.
struct NvmlFabricInfo {
    unsigned version; // the size of the whole, and the version in the highest byte
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health_mask;
};

constexpr unsigned kFabricInfo2 = 0x0200'0024;
constexpr unsigned kFabricInfo3 = 0x0300'0028;
constexpr unsigned char kFabricNotSupported = 0;
constexpr unsigned char kFabricCompleted = 3;
static_assert(sizeof(NvmlFabricInfo) == (kFabricInfo2 & 0xffffff));

// A handle is the number of its device plus one, so that it is not null.
void* handle_of(int physical) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(physical) + 1);
}

// Does `body` with the device of a handle, which must exist.
template <typename Body> int about(void* handle, Body&& body) {
    const int physical = static_cast<int>(reinterpret_cast<uintptr_t>(handle)) - 1;
    if (physical < 0 || physical >= physical_device_count()) {
        return kNvmlInvalidArgument;
    }
    return outcome(body, physical);
}

template <typename Matches> int find_device(void** handle, Matches&& matches) {
    for (int physical = 0; physical < physical_device_count(); ++physical) {
        if (matches(physical)) {
            *handle = handle_of(physical);
            return kNvmlSuccess;
        }
    }
    return kNvmlNotFound;
}

void format_uuid(int physical, char (&text)[48]) {
    const auto uuid = device_uuid(physical);
    size_t at = static_cast<size_t>(std::snprintf(text, sizeof text, "GPU-"));
    for (size_t byte = 0; byte < uuid.size(); ++byte) {
        const bool dash = byte == 4 || byte == 6 || byte == 8 || byte == 10;
        at += static_cast<size_t>(
            std::snprintf(text + at, sizeof text - at, dash ? "-%02x" : "%02x", uuid[byte]));
    }
}

int write(std::string_view answer, char* text, unsigned length) {
    if (answer.size() >= length) {
        return kNvmlInsufficientSize;
    }
    text[answer.copy(text, answer.size())] = '\0';
    return kNvmlSuccess;
}

} // namespace

EMU_EXPORT int nvmlInit() {
    return kNvmlSuccess;
}

EMU_ALIAS(nvmlInit_v2, nvmlInit)
EMU_ALIAS(nvmlInitWithFlags, nvmlInit)
EMU_ALIAS(nvmlShutdown, nvmlInit)

EMU_EXPORT const char* nvmlErrorString(int status) {
    return status == kNvmlSuccess ? "Success" : "Not available from the emulated devices";
}

EMU_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = kCudaVersion;
    return kNvmlSuccess;
}

EMU_EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = static_cast<unsigned>(physical_device_count());
    return kNvmlSuccess;
}

EMU_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
    return find_device(handle,
                       [index](int physical) { return physical == static_cast<int>(index); });
}

EMU_EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
    return find_device(handle, [uuid](int physical) {
        char text[48];
        format_uuid(physical, text);
        return std::string_view(uuid) == text;
    });
}

EMU_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** handle) {
    return find_device(handle, [address](int physical) {
        // The domain may have four digits or eight, and letters may be large.
        for (const int domain_digits : {4, 8}) {
            char text[24];
            format_pci_address(physical, domain_digits, text, sizeof text);
            if (strcasecmp(text, address) == 0) {
                return true;
            }
        }
        return false;
    });
}

EMU_EXPORT int nvmlDeviceGetUUID(void* handle, char* text, unsigned length) {
    return about(handle, [&](int physical) {
        char uuid[48];
        format_uuid(physical, uuid);
        return write(uuid, text, length);
    });
}

EMU_EXPORT int nvmlDeviceGetMemoryInfo(void* handle, NvmlMemory* memory) {
    return about(handle, [&](int) { *memory = {device_capacity(), device_capacity(), 0}; });
}

EMU_EXPORT int nvmlDeviceGetName(void* handle, char* text, unsigned length) {
    return about(handle, [&](int) { return write(gpu().name, text, length); });
}

EMU_EXPORT int nvmlDeviceGetCudaComputeCapability(void* handle, int* major, int* minor) {
    *major = gpu().major;
    *minor = gpu().minor;
    return about(handle, [](int) {});
}

EMU_EXPORT int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, void*) {
    *count = 0;
    return about(handle, [](int) {});
}

// All devices reach each other, or none (NVML_P2P_STATUS_NOT_SUPPORTED).
EMU_EXPORT int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) {
    *status = gpu().peers ? 0 : 4;
    return kNvmlSuccess;
}

EMU_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) {
    return kNvmlNotSupported;
}

EMU_ALIAS(nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlDeviceGetNvLinkRemoteDeviceType)

// PyTorch asks this before it makes an expandable segment, and 2.13 takes a failure for an error.
// An H100 without a fabric answers so: with success, and a state.
EMU_EXPORT int nvmlDeviceGetGpuFabricInfoV(void* handle, NvmlFabricInfo* info) {
    return about(handle, [&](int) {
        const unsigned version = info->version;
        if (version != kFabricInfo2 && version != kFabricInfo3) {
            return kNvmlVersionMismatch;
        }
        *info = {};
        info->version = version;
        info->state = has_fabric() ? kFabricCompleted : kFabricNotSupported;
        if (has_fabric()) {
            std::memset(info->cluster, 1, sizeof info->cluster); // one joins all emulated hosts
        }
        return kNvmlSuccess;
    });
}

} // namespace tracehook::rehearsal::cuda
