// What the emulated CUDA runtime offers to the emulated NCCL and to the computed values
// (rehearsal/values): streams that run host functions in order, and device memory that other
// processes can read.
//
// Plain C, exported by libcudart_emulated.so, which a rehearsal loads before anything else. Every
// function may be called from any thread; none of them throws.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Runs `work(argument)` on `stream` (a cudaStream_t, null for the legacy default stream of the
// current device) after everything enqueued on it before, on the stream's own thread. Returns at
// once: the caller is never blocked by the work. A stream that has unfinished work is "not ready"
// to cudaStreamQuery and to events. On a captured stream the work is done once, with a word on
// stderr, and the capture is invalidated.
void emu_stream_enqueue(void* stream, void (*work)(void*), void* argument);

// 1 if `stream` (null for the legacy default stream of the current device) is being captured, also
// if the capture was invalidated and has not ended yet. 0 otherwise.
int emu_stream_capturing(void* stream);

// 1 if a capture is under way that forbids the calling thread calls which could disturb it: one
// that this thread began, or one of mode "global" if the thread's own mode is "global" too; none if
// either mode is "relaxed".
int emu_capture_under_way(void);

// Marks the captures that emu_capture_under_way means as invalidated, as a forbidden call does.
void emu_capture_invalidate(void);

// Records work on a captured stream; no other stream may be given. Nothing is done now. Whenever an
// instance of the graph is launched, `launched(argument)` is called on the launching thread, in the
// order in which the graph was captured, and then `work(argument)` runs on the own thread of the
// stream of the launch, after everything that was captured before it. `dropped(argument)` is called
// once, on any thread, without a lock: when the graph, its instances and their launches under way
// are gone, or at once if the capture is invalid by now.
void emu_stream_enqueue_replayable(void* stream, void (*work)(void*), void (*launched)(void*),
                                   void (*dropped)(void*), void* argument);

// As a kernel: runs `work(argument)` on `stream` in order, at once on the calling thread if nothing
// is pending there; on a captured stream, at every launch of the graph. `dropped(argument)` is
// called once, when no more work can come.
void emu_stream_compute(void* stream, void (*work)(void*), void (*dropped)(void*), void* argument);

// +1: from now on the host computes what the kernels would that this thread launches; -1: no
// longer.
void emu_host_computes(int change);

// `observer` is called on the launching thread, before the launch, for each kernel of torch and
// each product of cuBLAS that the host does not compute. `name` says which, as C++ writes it, and
// lives until the observer returns. One observer; null removes it.
void emu_set_launch_observer(void (*observer)(const char* name));

// 1 if all of [pointer, pointer + size) lies in one live device allocation, which is then
// described: its base, its size and its device (each may be null). 0 otherwise.
int emu_memory_find(const void* pointer, size_t size, uintptr_t* base, size_t* bytes, int* device);

// Where another process finds the byte at `pointer`: at *offset of /proc/<pid>/fd/<*fd>, which it
// may mmap shared. 1 on success, 0 if the pointer is not emulated device memory.
int emu_memory_export(const void* pointer, int* fd, uint64_t* offset);

// `observer` is called, on the freeing thread, just before a device allocation is unmapped. One
// observer; null removes it.
void emu_set_free_observer(void (*observer)(uintptr_t base, size_t size));

// `observer` is called, on the freeing thread, just before cudaFree unmaps memory that another
// process, named by its id, has open by cudaIpcOpenMemHandle. One observer; null removes it.
void emu_set_open_free_observer(void (*observer)(uintptr_t base, size_t size, int process));

// Device memory that was not made by the cudaMalloc family but, as if by the driver's virtual
// memory calls, has a handle that can be exported: what ncclMemAlloc needs. Null / 0 on failure.
void* emu_memory_allocate(size_t size, int device);
int emu_memory_free(void* pointer);

// 1 if `pointer` lies in device memory that has a handle which could be shared: what the driver's
// virtual memory calls mapped, or emu_memory_allocate gave. 0 for cudaMalloc and all else.
int emu_memory_has_handle(const void* pointer);

// 1 if that handle can be given to another process. 0 if it was made for this process alone, and if
// there is none.
int emu_memory_is_exportable(const void* pointer);

// The number of the memory with a handle that is mapped at `pointer`: mapped anew there, memory has
// another one. 0 if there is none.
uint64_t emu_memory_number(const void* pointer);

// What the sizes of memory with a handle are multiples of; the memory of a device.
size_t emu_memory_granularity(void);
size_t emu_device_capacity(void);

// Takes a hold of that handle that nobody ever gives back, as NCCL does by mistake.
void emu_memory_leak(const void* pointer);

// Device memory that nobody computed (unwritten.h): from now on [at, at + size) reads as `byte`. 0,
// and nothing is noted, unless this process alone can reach all of it.
int emu_unwritten_note(void* at, size_t size, unsigned char byte);

// 0: no memory is unwritten, and the next functions have nothing to do; or none of [at, at + size).
int emu_unwritten_any(void);
int emu_unwritten_any_in(const void* at, size_t size);

// Before somebody reads [at, at + size) or writes parts of it. 0, and nothing is done, if what is
// unwritten there is too much to be filled.
int emu_unwritten_fill(const void* at, size_t size);

// All of [at, at + size) is about to be written.
void emu_unwritten_forget(const void* at, size_t size);

// The ranges in [at, at + size), in their order: how many there are. At most `room` are written.
struct emu_hole {
    uint64_t offset; // from `at`
    uint64_t size;
    unsigned char byte;
};
size_t emu_unwritten_list(const void* at, size_t size, struct emu_hole* holes, size_t room);

// What a hole stands for, at `at`: noted there if that is possible and worth it, else written.
void emu_unwritten_put(void* at, size_t size, unsigned char byte);

// 1 if somebody else may write to some of [at, at + size): another process, or this one by another
// address. Also if it is no device memory.
int emu_memory_is_open(const void* at, size_t size);

// What a rehearsal may take to compute values (host_limits.h): the most elements of a tensor, and
// whether the machine has so little memory left that only small ones may be computed.
int64_t emu_most_values(void);
int emu_memory_is_short(void);

// The calling thread's current device, and setting it; no error is possible for 0 <= device <
// device count.
int emu_current_device(void);
void emu_set_current_device(int device);

// What is to go wrong in this call (faults.h): a result other than 0 that it returns, a sleep
// before it, and a time in which what it makes stays in progress.
struct emu_fault {
    int result;
    int64_t delay_us;
    int64_t holding_us;
};
struct emu_fault emu_fault_of(const char* call);

// A kernel of this process met an assertion: from now on each call of the runtime fails that works
// on a device.
void emu_device_assert(void);

// For tests: other faults in place of those before, whose calls count from now on; and how many
// calls the first fault of this name has counted.
void emu_play_faults(const char* list);
uint64_t emu_fault_calls(const char* call);

// When the process ends: says on stderr which kernels that are not torch's it launched, if it did.
// `rank` is that of the process in the job, or negative.
void emu_tell_of_kernels(int rank);

#ifdef __cplusplus
}
#endif
