#include "driver_support.h"

#include "backing.h"
#include "copy.h"
#include "device_properties.h"
#include "devices.h"
#include "faults.h"
#include "identity.h"
#include "unwritten.h"

#include <algorithm>

#include <sys/mman.h>

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int emu_driver_enter(const char* call) {
    const Status status = enter_runtime();
    return status == kSuccess ? suffer(call) : status;
}

EMU_EXPORT int emu_device_active(int device) {
    return device_is_active(device) ? 1 : 0;
}

EMU_EXPORT void emu_device_activate(int device) {
    activate_device(device);
}

EMU_EXPORT int emu_device_attribute(int attribute, int device) {
    return device_attribute(attribute, device);
}

EMU_EXPORT void emu_device_uuid(int device, uint8_t* uuid) {
    std::ranges::copy(device_uuid(physical_index(device)), uuid);
}

EMU_EXPORT size_t emu_device_capacity(void) {
    return device_capacity();
}

EMU_EXPORT size_t emu_memory_granularity(void) {
    return kGranularity;
}

EMU_EXPORT void* emu_addresses_reserve(size_t size, size_t alignment) {
    return Backing::reserve(size, std::max(alignment, kGranularity));
}

EMU_EXPORT int emu_addresses_free(void* address, size_t size) {
    return munmap(address, size) == 0 ? 1 : 0;
}

EMU_EXPORT int emu_stream_set_words(void* stream, void* address, uint32_t value, size_t count) {
    auto* const words = static_cast<uint32_t*>(address);
    return run_on_stream(stream, [=] {
        Unwritten::instance().forget(words, count * sizeof value);
        std::fill_n(words, count, value);
    });
}
