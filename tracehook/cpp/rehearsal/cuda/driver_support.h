// What libcuda.so.1 needs from libcudart_emulated.so beyond device.h. Plain C, because it crosses
// two libraries.
//
// Any thread. Nothing throws. Status codes are those of the driver, which agree with the runtime's
// where both have one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A call of this name begins, which marks CUDA as used by this process: 0, 3 (forked child), 100
// (no device), or the result of a fault.
int emu_driver_enter(const char* call);

// Whether the primary context of a device exists, and making it.
int emu_device_active(int device);
void emu_device_activate(int device);

// One cudaDeviceAttr, by its number; the 16 bytes of a device's UUID; its memory.
int emu_device_attribute(int attribute, int device);
void emu_device_uuid(int device, uint8_t* uuid);
size_t emu_device_capacity(void);

// Addresses without memory. Sizes are multiples of emu_memory_granularity. 1 or non-null on
// success.
size_t emu_memory_granularity(void);
void* emu_addresses_reserve(size_t size, size_t alignment);
int emu_addresses_free(void* address, size_t size);

// Memory without addresses, named by handles. It lives while a handle is held, it is mapped, or
// another process holds it. `types` are bits: memory of type 1 is exported as a new file
// descriptor, which is the caller's, and imported from any that leads to it; memory of type 8 as
// the 64 bytes of a fabric handle, if this rehearsal has them.
int emu_handle_create(uint64_t* handle, size_t size, int device, int types);
int emu_handle_retain(uint64_t* handle, const void* address);
int emu_handle_release(uint64_t handle);
int emu_handle_describe(uint64_t handle, int* device, int* types);
int emu_handle_export(uint64_t handle, int* descriptor);
int emu_handle_import(uint64_t* handle, int descriptor);
int emu_handle_export_fabric(uint64_t handle, void* shared);
int emu_handle_import_fabric(uint64_t* handle, const void* shared);
int emu_has_fabric(void);

// The mapping of one on the other. `access` is 0, 1 (read) or 3 (read and write), and none at
// first.
int emu_mapping_add(void* address, size_t size, size_t offset, uint64_t handle);
int emu_mapping_remove(void* address, size_t size);
int emu_mapping_allow(void* address, size_t size, int device, int access);

// Sets `count` words on a stream, in its order.
int emu_stream_set_words(void* stream, void* address, uint32_t value, size_t count);

// One operation on a word of memory: a write, or a wait until `condition` (0: at least `value`,
// cyclically; 1: equal; 2: a common bit; 3: a bit that neither has) holds.
struct emu_memory_operation {
    uintptr_t address;
    uint32_t value;
    int waits;
    unsigned condition;
};

// Gives operations to a stream as one piece of work, in its order. A wait blocks that stream only.
int emu_stream_memory_operations(void* stream, const struct emu_memory_operation* operations,
                                 size_t count);

// Code that a program loads, on the current device or for any: modules, and kernels in them, by
// handles. An unknown handle is 400.
int emu_module_load(void** module, int for_any_device);
int emu_module_unload(void* module);
int emu_module_kernel(void** kernel, void* module, const char* name);
int emu_kernel_name(void* kernel, const char** name);
int emu_kernel_launch(void* kernel, void* stream);
int emu_kernel_blocks_at_once(int block_size);

#ifdef __cplusplus
}
#endif
