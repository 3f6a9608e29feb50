#include "device_properties.h"

#include "devices.h"
#include "identity.h"

#include <cstdio>

namespace tracehook::emulator {
namespace {

constexpr int kWarpSize = 32;
constexpr int kMultiProcessors = 132;
constexpr int kRegisters = 65536;
constexpr int kSharedPerBlock = 48 << 10;
constexpr int kSharedPerBlockOptin = 227 << 10;
constexpr int kSharedPerMultiProcessor = 228 << 10;
constexpr int kSharedReserved = 1 << 10;
constexpr int kL2Cache = 60 << 20;
constexpr int kConstMemory = 64 << 10;
constexpr int kGridX = 2147483647;
constexpr int kGridYZ = 65535;
constexpr int kBusWidth = 6144;
constexpr int kAsyncEngines = 3;
constexpr int kPitch = 2147483647;
constexpr int kTextureAlignment = 512;
constexpr int kMajor = 9;
constexpr int kMinor = 0;

} // namespace

void fill_properties(DeviceProperties& properties, int device) {
    const int physical = physical_index(device);
    properties = {};
    std::snprintf(properties.name, sizeof properties.name, "%s", kDeviceName);
    properties.uuid = device_uuid(physical);
    properties.total_global_memory = device_capacity();
    properties.shared_memory_per_block = kSharedPerBlock;
    properties.registers_per_block = kRegisters;
    properties.warp_size = kWarpSize;
    properties.memory_pitch = kPitch;
    properties.max_threads_per_block = kThreadsPerBlock;
    properties.max_threads_dim[0] = properties.max_threads_dim[1] = kThreadsPerBlock;
    properties.max_threads_dim[2] = 64;
    properties.max_grid_size[0] = kGridX;
    properties.max_grid_size[1] = properties.max_grid_size[2] = kGridYZ;
    properties.total_const_memory = kConstMemory;
    properties.major = kMajor;
    properties.minor = kMinor;
    properties.texture_alignment = kTextureAlignment;
    properties.texture_pitch_alignment = kWarpSize;
    properties.surface_alignment = kTextureAlignment;
    properties.multi_processor_count = kMultiProcessors;
    properties.can_map_host_memory = 1;
    properties.concurrent_kernels = 1;
    properties.ecc_enabled = 1;
    properties.pci_bus_id = kFirstPciBus + physical;
    properties.async_engine_count = kAsyncEngines;
    properties.unified_addressing = 1;
    properties.memory_bus_width = kBusWidth;
    properties.l2_cache_size = kL2Cache;
    properties.max_threads_per_multi_processor = kThreadsPerMultiProcessor;
    properties.stream_priorities_supported = 1;
    properties.global_l1_cache_supported = 1;
    properties.local_l1_cache_supported = 1;
    properties.shared_memory_per_multiprocessor = kSharedPerMultiProcessor;
    properties.registers_per_multiprocessor = kRegisters;
    properties.compute_preemption_supported = 1;
    properties.can_use_host_pointer_for_registered_memory = 1;
    properties.cooperative_launch = 1;
    properties.shared_memory_per_block_optin = kSharedPerBlockOptin;
    properties.max_blocks_per_multi_processor = kBlocksPerMultiProcessor;
    properties.reserved_shared_memory_per_block = kSharedReserved;
    properties.host_register_supported = 1;
}

int device_attribute(int attribute, int device) {
    switch (attribute) {
    case 1: // MaxThreadsPerBlock
    case 2: // MaxBlockDimX
    case 3: // MaxBlockDimY
        return kThreadsPerBlock;
    case 4: // MaxBlockDimZ
        return 64;
    case 5: // MaxGridDimX
        return kGridX;
    case 6: // MaxGridDimY
    case 7: // MaxGridDimZ
        return kGridYZ;
    case 8: // MaxSharedMemoryPerBlock
        return kSharedPerBlock;
    case 9: // TotalConstantMemory
        return kConstMemory;
    case 10: // WarpSize
        return kWarpSize;
    case 11: // MaxPitch
        return kPitch;
    case 12: // MaxRegistersPerBlock
    case 82: // MaxRegistersPerMultiprocessor
        return kRegisters;
    case 13: // ClockRate, kHz
        return 1980000;
    case 14: // TextureAlignment
    case 30: // SurfaceAlignment
        return kTextureAlignment;
    case 51: // TexturePitchAlignment
        return kWarpSize;
    case 16: // MultiProcessorCount
        return kMultiProcessors;
    case 33: // PciBusId
        return kFirstPciBus + physical_index(device);
    case 36: // MemoryClockRate, kHz
        return 3201000;
    case 37: // GlobalMemoryBusWidth
        return kBusWidth;
    case 38: // L2CacheSize
        return kL2Cache;
    case 39: // MaxThreadsPerMultiProcessor
        return kThreadsPerMultiProcessor;
    case 40: // AsyncEngineCount
        return kAsyncEngines;
    case 75: // ComputeCapabilityMajor
        return kMajor;
    case 76: // ComputeCapabilityMinor
        return kMinor;
    case 81: // MaxSharedMemoryPerMultiprocessor
        return kSharedPerMultiProcessor;
    case 97: // MaxSharedMemoryPerBlockOptin
        return kSharedPerBlockOptin;
    case 106: // MaxBlocksPerMultiprocessor
        return kBlocksPerMultiProcessor;
    case 111: // ReservedSharedMemoryPerBlock
        return kSharedReserved;
    case 134: // HostNumaId
        return -1;
    case 15:  // GpuOverlap
    case 19:  // CanMapHostMemory
    case 31:  // ConcurrentKernels
    case 32:  // EccEnabled
    case 41:  // UnifiedAddressing
    case 78:  // StreamPrioritiesSupported
    case 79:  // GlobalL1CacheSupported
    case 80:  // LocalL1CacheSupported
    case 90:  // ComputePreemptionSupported
    case 91:  // CanUseHostPointerForRegisteredMem
    case 95:  // CooperativeLaunch
    case 99:  // HostRegisterSupported
    case 102: // VirtualMemoryManagementSupported
    case 103: // HandleTypePosixFileDescriptorSupported
    case 123: // CanUseStreamWaitValueNor; 64-bit operations (122) are not emulated
    case 132: // MulticastSupported: what PyTorch asks before it offers memory of ncclMemAlloc
        return 1;
    case 128: // HandleTypeFabricSupported
        return has_fabric() ? 1 : 0;
    default:
        return 0;
    }
}

} // namespace tracehook::emulator
