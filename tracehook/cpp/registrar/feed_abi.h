/* The feed of segments, for libraries that keep something by the address of GPU memory: what a
 * network card was told, a handle of another process, a cache. Plain C, exported by tracehook's
 * module _core; tracehook.subscribe() is the same for Python.
 *
 * Fields are only ever added at the end, and struct_size tells which there are. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tracehook_segment_what {
    TRACEHOOK_SEGMENT_BORN = 1,     /* it exists: the allocator got it, or it was there before */
    TRACEHOOK_SEGMENT_MAPPED = 2,   /* it has memory again, other than before, and a new id    */
    TRACEHOOK_SEGMENT_UNMAPPED = 3, /* a library takes its memory away, and torch keeps it     */
    TRACEHOOK_SEGMENT_GONE = 4      /* the allocator frees it                                  */
};

struct tracehook_segment_change {
    uint32_t struct_size;
    int32_t what;
    uint64_t id; /* of this process, never used again; an address is */
    uint64_t address;
    uint64_t size; /* bytes */
    int32_t device;
    int32_t memory; /* the numbers of events/memory_kinds.def */
};

/* On the thread of the allocator, with its lock held and perhaps Python's, one at a time, in the
 * order in which things happen. A segment that is unmapped or gone still has its memory, until the
 * call returns. It must not wait, call CUDA's memory functions, torch's allocator or tracehook, or
 * take Python's lock. */
typedef void (*tracehook_segment_listener)(void* user,
                                           const struct tracehook_segment_change* change);

/* First tells, on this thread, what there is: each segment as born, and as unmapped where it has no
 * memory. Returns a number for tracehook_unsubscribe; 0 if tracehook is not started in this
 * process. Any thread, but not a listener. */
uint64_t tracehook_subscribe(tracehook_segment_listener listener, void* user);

/* When it returns the listener is not called any more. */
void tracehook_unsubscribe(uint64_t subscription);

#ifdef __cplusplus
}
#endif
