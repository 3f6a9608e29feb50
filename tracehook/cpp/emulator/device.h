// What the emulated CUDA runtime offers to the emulated NCCL: streams that run host functions in
// order, and device memory that other processes can read.
//
// Plain C, exported by libcudart_emulated.so and called by the emulated libnccl.so.2, both of which
// a rehearsal loads before anything else. Every function may be called from any thread; none of
// them throws.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Runs `work(argument)` on `stream` (a cudaStream_t, null for the legacy default stream of the
// current device) after everything enqueued on it before, on the stream's own thread. Returns at
// once: the caller is never blocked by the work. A stream that has unfinished work is "not ready"
// to cudaStreamQuery and to events.
void emu_stream_enqueue(void* stream, void (*work)(void*), void* argument);

// The device on which `stream` was created; the current device for the legacy default stream.
int emu_stream_device(void* stream);

// 1 if all of [pointer, pointer + size) lies in one live device allocation, which is then
// described: its base, its size and its device (each may be null). 0 otherwise.
int emu_memory_find(const void* pointer, size_t size, uintptr_t* base, size_t* bytes, int* device);

// Where another process finds the byte at `pointer`: at *offset of /proc/<pid>/fd/<*fd>, which it
// may mmap shared. 1 on success, 0 if the pointer is not emulated device memory.
int emu_memory_export(const void* pointer, int* fd, uint64_t* offset);

// `observer` is called, on the freeing thread, just before a device allocation is unmapped. One
// observer; null removes it.
void emu_set_free_observer(void (*observer)(uintptr_t base, size_t size));

// Device memory that was not made by the cudaMalloc family: what ncclMemAlloc needs. Null / 0 on
// failure.
void* emu_memory_allocate(size_t size, int device);
int emu_memory_free(void* pointer);

// The calling thread's current device, and setting it; no error is possible for 0 <= device <
// device count.
int emu_current_device(void);
void emu_set_current_device(int device);
int emu_device_count(void);

#ifdef __cplusplus
}
#endif
