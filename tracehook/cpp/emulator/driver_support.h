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

// Marks CUDA as used by this process: 0, 3 (forked child) or 100 (no device).
int emu_driver_enter(void);

// Whether the primary context of a device exists, and making it.
int emu_device_active(int device);
void emu_device_activate(int device);

// One cudaDeviceAttr, by its number; the 16 bytes of a device's UUID; its memory.
int emu_device_attribute(int attribute, int device);
void emu_device_uuid(int device, uint8_t* uuid);
size_t emu_device_capacity(void);

// Virtual memory: addresses, memory without an address (named by its offset in the memory's file),
// and the mapping of one on the other. Sizes are multiples of emu_memory_granularity. 1 or non-null
// on success.
size_t emu_memory_granularity(void);
void* emu_addresses_reserve(size_t size, size_t alignment);
int emu_addresses_free(void* address, size_t size);
int emu_range_take(size_t size, int device, uint64_t* offset);
void emu_range_give_back(uint64_t offset, size_t size, int device);
int emu_range_map(void* address, uint64_t offset, size_t size, int device);
int emu_range_unmap(void* address, size_t size);

// Sets `count` words on a stream, in its order.
int emu_stream_set_words(void* stream, void* address, uint32_t value, size_t count);

#ifdef __cplusplus
}
#endif
