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

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cuInit(unsigned) {
    return enter_driver(__func__);
}

EMU_EXPORT int cuDeviceGetCount(int* count) {
    *count = device_count();
    const int status = enter_driver(__func__);
    return status == kNoDevice ? kSuccess : status;
}

EMU_EXPORT int cuDeviceGet(int* device, int ordinal) {
    return on_device(ordinal, [&] { *device = ordinal; });
}

EMU_EXPORT int cuDeviceGetName(char* name, int length, int device) {
    return on_device(device,
                     [&] { std::snprintf(name, static_cast<size_t>(length), "%s", gpu().name); });
}

EMU_EXPORT int cuDeviceGetUuid_v2(uint8_t* uuid, int device) {
    return on_device(device, [&] { std::ranges::copy(device_uuid(physical_index(device)), uuid); });
}

EMU_ALIAS(cuDeviceGetUuid, cuDeviceGetUuid_v2)

EMU_EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    return on_device(device, [&] { *bytes = device_capacity(); });
}

EMU_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
    return on_device(device, [&] { *value = device_attribute(attribute, device); });
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
