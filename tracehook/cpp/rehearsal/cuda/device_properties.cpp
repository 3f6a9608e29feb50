#include "device_properties.h"

#include "devices.h"
#include "identity.h"

#include <cstdio>

namespace tracehook::rehearsal::cuda {
namespace {

constexpr int kWarpSize = 32;
constexpr int kRegisters = 65536;
constexpr int kSharedPerBlock = 48 << 10;
constexpr int kSharedReserved = 1 << 10;
constexpr int kConstMemory = 64 << 10;
constexpr int kGridX = 2147483647;
constexpr int kGridYZ = 65535;
constexpr int kBusWidth = 6144;
constexpr int kAsyncEngines = 3;
constexpr int kPitch = 2147483647;
constexpr int kTextureAlignment = 512;

} // namespace

void fill_properties(DeviceProperties& properties, int device) {
    const int physical = physical_index(device);
    properties = {};
    std::snprintf(properties.name, sizeof properties.name, "%s", gpu().name);
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
    properties.major = gpu().major;
    properties.minor = gpu().minor;
    properties.texture_alignment = kTextureAlignment;
    properties.texture_pitch_alignment = kWarpSize;
    properties.surface_alignment = kTextureAlignment;
    properties.multi_processor_count = gpu().multiprocessors;
    properties.can_map_host_memory = 1;
    properties.concurrent_kernels = 1;
    properties.ecc_enabled = 1;
    properties.pci_bus_id = kFirstPciBus + physical;
    properties.async_engine_count = kAsyncEngines;
    properties.unified_addressing = 1;
    properties.memory_bus_width = kBusWidth;
    properties.l2_cache_size = gpu().l2_mib << 20;
    properties.max_threads_per_multi_processor = gpu().threads_per_multiprocessor;
    properties.stream_priorities_supported = 1;
    properties.global_l1_cache_supported = 1;
    properties.local_l1_cache_supported = 1;
    properties.shared_memory_per_multiprocessor = gpu().shared_per_multiprocessor_kib << 10;
    properties.registers_per_multiprocessor = kRegisters;
    properties.compute_preemption_supported = 1;
    properties.can_use_host_pointer_for_registered_memory = 1;
    properties.cooperative_launch = 1;
    properties.shared_memory_per_block_optin = gpu().shared_per_block_kib << 10;
    properties.max_blocks_per_multi_processor = gpu().blocks_per_multiprocessor;
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
        return gpu().multiprocessors;
    case 33: // PciBusId
        return kFirstPciBus + physical_index(device);
    case 36: // MemoryClockRate, kHz
        return 3201000;
    case 37: // GlobalMemoryBusWidth
        return kBusWidth;
    case 38: // L2CacheSize
        return gpu().l2_mib << 20;
    case 39: // MaxThreadsPerMultiProcessor
        return gpu().threads_per_multiprocessor;
    case 40: // AsyncEngineCount
        return kAsyncEngines;
    case 75: // ComputeCapabilityMajor
        return gpu().major;
    case 76: // ComputeCapabilityMinor
        return gpu().minor;
    case 81: // MaxSharedMemoryPerMultiprocessor
        return gpu().shared_per_multiprocessor_kib << 10;
    case 97: // MaxSharedMemoryPerBlockOptin
        return gpu().shared_per_block_kib << 10;
    case 106: // MaxBlocksPerMultiprocessor
        return gpu().blocks_per_multiprocessor;
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
        return 1;
    case 132: // MulticastSupported: what PyTorch asks before it offers memory of ncclMemAlloc
        return gpu().nvlink && gpu().major >= 9 ? 1 : 0;
    case 128: // HandleTypeFabricSupported
        return has_fabric() ? 1 : 0;
    default:
        return 0;
    }
}

} // namespace tracehook::rehearsal::cuda
