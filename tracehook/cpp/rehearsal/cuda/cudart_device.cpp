// The runtime's functions about devices.
#include "cuda_abi.h"
#include "device_properties.h"
#include "devices.h"
#include "identity.h"
#include "runtime_call.h"
#include "stream_table.h"

#include <array>
#include <atomic>

namespace tracehook::rehearsal::cuda {
namespace {

// Which device may reach which other; cudaDeviceEnablePeerAccess says so once.
constinit std::array<std::array<std::atomic<bool>, kMaxDevices>, kMaxDevices> peers{};

} // namespace

EMU_EXPORT int cudaGetDeviceCount(int* count) {
    *count = 0;
    return query_call([&] { *count = device_count(); });
}

EMU_EXPORT int cudaGetDevice(int* device) {
    return query_call([&] { *device = current_device(); });
}

EMU_EXPORT int cudaSetDevice(int device) {
    return about_device(device, [&] {
        set_current_device(device);
        activate_device(device);
    });
}

EMU_EXPORT int cudaDeviceSynchronize() {
    return context_call([&] {
        const Status status = Captures::instance().ask_device(current_device());
        if (status == kSuccess) {
            StreamTable::instance().synchronize_device(current_device());
        }
        return status;
    });
}

EMU_EXPORT int cudaGetDeviceProperties(DeviceProperties* properties, int device) {
    return about_device(device, [&] { fill_properties(*properties, device); });
}

EMU_EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int device) {
    return about_device(device, [&] { *value = device_attribute(attribute, device); });
}

EMU_EXPORT int cudaDeviceGetPCIBusId(char* text, int length, int device) {
    return about_device(device, [&] {
        if (text == nullptr || length < 13) {
            return kInvalidValue;
        }
        format_pci_address(physical_index(device), 4, text, static_cast<size_t>(length));
        return kSuccess;
    });
}

EMU_EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return query_call([&] {
        give(least, kLeastPriority);
        give(greatest, kGreatestPriority);
    });
}

EMU_EXPORT int cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
    return about_device(device, [&] {
        if (!in_range(peer)) {
            return kInvalidDevice;
        }
        *can_access = device != peer && gpu().peers ? 1 : 0;
        return kSuccess;
    });
}

EMU_EXPORT int cudaDeviceEnablePeerAccess(int peer, unsigned) {
    return context_call([&] {
        if (!in_range(peer) || peer == current_device()) {
            return kInvalidDevice;
        }
        if (!gpu().peers) {
            return kPeerAccessUnsupported;
        }
        return peers[current_device()][peer].exchange(true) ? kPeerAccessAlreadyEnabled : kSuccess;
    });
}

} // namespace tracehook::rehearsal::cuda
