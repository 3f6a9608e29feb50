// What the emulated devices say about themselves (device_properties.def): the properties and
// attributes of what is played (gpu.h); what gpus.def does not tell is that of an NVIDIA H200.
//
// Pure functions of the device's index; any thread.
#pragma once

#include "cuda_abi.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tracehook::rehearsal::cuda {

inline constexpr int kMultiProcessors = 132;
inline constexpr int kThreadsPerBlock = 1024;

// cudaDeviceProp of CUDA 13. Runs of fields that nobody reads here have one name.
struct DeviceProperties {
    char name[256];
    std::array<uint8_t, 16> uuid;
    char luid[8];
    unsigned luid_device_node_mask;
    size_t total_global_memory;
    size_t shared_memory_per_block;
    int registers_per_block;
    int warp_size;
    size_t memory_pitch;
    int max_threads_per_block;
    int max_threads_dim[3];
    int max_grid_size[3];
    size_t total_const_memory;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
    int multi_processor_count;
    int integrated;
    int can_map_host_memory;
    int textures_and_surfaces[39];
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc_enabled;
    int pci_bus_id;
    int rest_of_pci_address[2];
    int tcc_driver;
    int async_engine_count;
    int unified_addressing;
    int memory_bus_width;
    int l2_cache_size;
    int persisting_l2_cache_max_size;
    int max_threads_per_multi_processor;
    int stream_priorities_supported;
    int global_l1_cache_supported;
    int local_l1_cache_supported;
    size_t shared_memory_per_multiprocessor;
    int registers_per_multiprocessor;
    int managed_memory_and_boards[6];
    int compute_preemption_supported;
    int can_use_host_pointer_for_registered_memory;
    int cooperative_launch;
    size_t shared_memory_per_block_optin;
    int page_tables_and_managed_memory[2];
    int max_blocks_per_multi_processor;
    int access_policy_max_window_size;
    size_t reserved_shared_memory_per_block;
    int host_register_supported;
    int rest[75];
};
static_assert(offsetof(DeviceProperties, uuid) == 256);
static_assert(offsetof(DeviceProperties, total_global_memory) == 288);
static_assert(offsetof(DeviceProperties, multi_processor_count) == 384);
static_assert(offsetof(DeviceProperties, pci_bus_id) == 568);
static_assert(sizeof(DeviceProperties) == 1008);

// `device` is a visible device in range.
void fill_properties(DeviceProperties& properties, int device);

// The value of one cudaDeviceAttr (the driver uses the same numbers); 0 for a feature that is not
// emulated.
int device_attribute(int attribute, int device);

} // namespace tracehook::rehearsal::cuda
