// Who the emulated devices are: how many a machine has, their names, their PCI addresses and their
// UUIDs.
//
// Header only, because the runtime and the management library (which do not link to each other)
// must agree. A "physical" index counts the devices of the machine, before CUDA_VISIBLE_DEVICES.
// All functions may be called from any thread.
#pragma once

#include "gpu.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace tracehook::rehearsal::cuda {

inline constexpr int kMaxDevices = 64;
inline constexpr int kFirstPciBus = 0x1b;

inline int physical_device_count() {
    const char* text = std::getenv("TRACEHOOK_EMU_DEVICES");
    return text == nullptr ? 1 : std::clamp(std::atoi(text), 0, kMaxDevices);
}

// The memory of each device in bytes.
inline size_t device_capacity() {
    const char* text = std::getenv("TRACEHOOK_EMU_MEMORY_GB");
    const double gigabytes = text == nullptr ? gpu().memory_gib : std::strtod(text, nullptr);
    return static_cast<size_t>(std::clamp(gigabytes, 0.0, 1024.0) * (1ULL << 30));
}

// Whether memory can be made with a fabric handle, which needs no file descriptor: another process
// that has its 64 bytes can map it. Real devices have that where NVLink spans several machines.
inline bool has_fabric() {
    const char* text = std::getenv("TRACEHOOK_EMU_FABRIC");
    return text != nullptr && std::atoi(text) != 0;
}

inline std::array<uint8_t, 16> device_uuid(int physical) {
    std::array<uint8_t, 16> uuid{0x74, 0x72, 0x61, 0x63, 0x65, 0x68, 0x40, 0x6f,
                                 0x80, 0x6b, 0x65, 0x6d, 0x75, 0x00, 0x00, 0x00};
    uuid.back() = static_cast<uint8_t>(physical);
    return uuid;
}

// "0000:1b:00.0", as the runtime writes it; longer `domain_digits` give the form of the management
// library.
inline void format_pci_address(int physical, int domain_digits, char* text, size_t length) {
    std::snprintf(text, length, "%0*x:%02x:00.0", domain_digits, 0, kFirstPciBus + physical);
}

} // namespace tracehook::rehearsal::cuda
