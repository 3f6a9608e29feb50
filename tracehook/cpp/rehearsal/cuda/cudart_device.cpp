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
} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

EMU_EXPORT int cudaGetDeviceCount(int* count) {
    *count = 0;
    return query_call([&] {
        *count = device_count();
        return kSuccess;
    });
}

EMU_EXPORT int cudaGetDevice(int* device) {
    return query_call([&] {
        *device = current_device();
        return kSuccess;
    });
}

EMU_EXPORT int cudaSetDevice(int device) {
    return query_call([&] {
        if (!set_current_device(device)) {
            return kInvalidDevice;
        }
        activate_device(device);
        return kSuccess;
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
    return query_call([&] {
        if (!in_range(device)) {
            return kInvalidDevice;
        }
        fill_properties(*properties, device);
        return kSuccess;
    });
}

EMU_EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int device) {
    return query_call([&] {
        if (!in_range(device)) {
            return kInvalidDevice;
        }
        *value = device_attribute(attribute, device);
        return kSuccess;
    });
}

EMU_EXPORT int cudaDeviceGetPCIBusId(char* text, int length, int device) {
    return query_call([&] {
        if (!in_range(device)) {
            return kInvalidDevice;
        }
        if (text == nullptr || length < 13) {
            return kInvalidValue;
        }
        format_pci_address(physical_index(device), 4, text, static_cast<size_t>(length));
        return kSuccess;
    });
}

EMU_EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return query_call([&] {
        if (least != nullptr) {
            *least = kLeastPriority;
        }
        if (greatest != nullptr) {
            *greatest = kGreatestPriority;
        }
        return kSuccess;
    });
}

EMU_EXPORT int cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
    return query_call([&] {
        if (!in_range(device) || !in_range(peer)) {
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
