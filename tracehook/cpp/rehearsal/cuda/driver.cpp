// The emulated libcuda.so.1: what PyTorch asks of the driver about devices and pointers.
//
// Any thread. In a forked child the functions fail as the runtime's do.
#include "backing.h"
#include "device.h"
#include "device_properties.h"
#include "driver_context.h"
#include "identity.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace tracehook::rehearsal::cuda {
namespace {

struct DriverText {
    int status;
    const char* name;
    const char* text;
};

constexpr DriverText kTexts[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported by the emulated driver"},
};

const DriverText* text_of(int status) {
    for (const DriverText& known : kTexts) {
        if (known.status == status) {
            return &known;
        }
    }
    return nullptr;
}

} // namespace
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cuInit(unsigned) {
    return enter_driver(__func__);
}

EMU_EXPORT int cuDriverGetVersion(int* version) {
    *version = kCudaVersion;
    return kSuccess;
}

EMU_EXPORT int cuGetErrorString(int status, const char** text) {
    const DriverText* const known = text_of(status);
    *text = known == nullptr ? nullptr : known->text;
    return known == nullptr ? kInvalidValue : kSuccess;
}

EMU_EXPORT int cuGetErrorName(int status, const char** name) {
    const DriverText* const known = text_of(status);
    *name = known == nullptr ? nullptr : known->name;
    return known == nullptr ? kInvalidValue : kSuccess;
}

EMU_EXPORT int cuDeviceGetCount(int* count) {
    *count = device_count();
    const int status = enter_driver(__func__);
    return status == kNoDevice ? kSuccess : status;
}

EMU_EXPORT int cuDeviceGet(int* device, int ordinal) {
    return on_device(ordinal, [&] {
        *device = ordinal;
        return kSuccess;
    });
}

EMU_EXPORT int cuDeviceGetName(char* name, int length, int device) {
    return on_device(device, [&] {
        std::snprintf(name, static_cast<size_t>(length), "%s", gpu().name);
        return kSuccess;
    });
}

EMU_EXPORT int cuDeviceGetUuid_v2(uint8_t* uuid, int device) {
    return on_device(device, [&] {
        std::ranges::copy(device_uuid(physical_index(device)), uuid);
        return kSuccess;
    });
}

EMU_EXPORT int cuDeviceGetUuid(uint8_t* uuid, int device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

EMU_EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    return on_device(device, [&] {
        *bytes = device_capacity();
        return kSuccess;
    });
}

EMU_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
    return on_device(device, [&] {
        *value = device_attribute(attribute, device);
        return kSuccess;
    });
}

EMU_EXPORT int cuPointerGetAttribute(void* data, int attribute, uintptr_t pointer) {
    constexpr int kContext = 1, kMemoryTypeOf = 2, kDevicePointer = 3, kBufferId = 7, kOrdinal = 9;
    constexpr int kLegacyIpc = 10, kRangeStart = 11, kRangeSize = 12;
    uintptr_t base = 0;
    size_t size = 0;
    int device = 0;
    if (emu_memory_find(reinterpret_cast<void*>(pointer), 1, &base, &size, &device) == 0) {
        return kInvalidValue;
    }
    if (const int status = enter_driver(__func__); status != kSuccess) {
        return status;
    }
    const auto answer = [data](auto value) {
        std::memcpy(data, &value, sizeof value);
        return kSuccess;
    };
    switch (attribute) {
    case kContext:
        return answer(context_of(device));
    case kMemoryTypeOf:
        return answer(static_cast<unsigned>(kDeviceMemory));
    case kDevicePointer:
        return answer(pointer);
    case kBufferId:
        return answer(static_cast<unsigned long long>(base));
    case kOrdinal:
        return answer(device);
    case kLegacyIpc:
        return answer(emu_memory_has_handle(reinterpret_cast<void*>(pointer)) == 0);
    case kRangeStart:
        return answer(base);
    case kRangeSize:
        return answer(size);
    default:
        return kNotSupported;
    }
}

// Memory with a handle has the size of the handle, though less may have been asked of ncclMemAlloc.
EMU_EXPORT int cuMemGetAddressRange_v2(uintptr_t* base, size_t* size, uintptr_t address) {
    const auto* const pointer = reinterpret_cast<const void*>(address);
    size_t bytes = 0;
    if (emu_memory_find(pointer, 1, base, &bytes, nullptr) == 0) {
        return kInvalidValue;
    }
    if (const int status = enter_driver(__func__); status != kSuccess) {
        return status;
    }
    if (size != nullptr) {
        const size_t unit = emu_memory_has_handle(pointer) != 0 ? kGranularity : 1;
        *size = (bytes + unit - 1) / unit * unit;
    }
    return kSuccess;
}
