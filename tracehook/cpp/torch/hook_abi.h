/* The seam between tracehook and torch: plain C, so that one _core works with every torch, and one
 * small hook_library per torch minor is all that has to be compiled against torch's headers (whose
 * classes change layout between minors).
 *
 * The reader checks struct_size and torch_version before it calls anything. Fields are only ever
 * added at the end. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum th_segment_action {
    TH_SEGMENT_ALLOC = 1, /* the segment exists                                        */
    TH_SEGMENT_FREE = 2,  /* the segment still exists, and is freed when the call returns */
    TH_SEGMENT_MAP = 3,   /* an expandable segment grew                                 */
    TH_SEGMENT_LIVE = 4,  /* from a snapshot                                            */
    TH_BLOCK_ALLOC = 5,   /* a tensor's memory, inside a segment                        */
    TH_SEGMENT_UNMAP = 6, /* an expandable segment shrank: this part is unmapped already */
    TH_BLOCK_FREE = 7,    /* the program gave a tensor's memory back                    */
    TH_BLOCK_FREED = 8    /* and the allocator may give it out again: at once, or when
                             streams that used it too are done                          */
};

/* Whether a pool has an allocator of its own torch does not tell. */
enum th_pool_kind {
    TH_POOL_DEFAULT = 0,
    TH_POOL_PRIVATE = 1, /* a MemPool, or one that graphs will share                          */
    TH_POOL_GRAPH = 2    /* a graph made it, or a graph is captured on the segment's stream now */
};

struct th_segment_event {
    uint32_t struct_size;
    int32_t action;
    int32_t device;
    int32_t expandable; /* 1: part of an expandable segment */
    uint64_t address;
    uint64_t size; /* bytes */
    int32_t pool;  /* th_pool_kind, of TH_SEGMENT_ALLOC and TH_SEGMENT_LIVE; other ones: 0 */
    int32_t unused;
};

/* Called by the allocator with its device lock held, on any thread, perhaps with the GIL held. It
 * must not throw. */
typedef void (*th_segment_callback)(void* user, const struct th_segment_event* event);

struct th_allocator_info {
    uint32_t struct_size;
    int32_t
        initialized; /* devices exist in the allocator; before that, attaching binds to nothing */
    int32_t caching; /* 0: every tensor is a cudaMalloc of its own and no event is ever fired    */
    int32_t expandable_segments; /* the setting, now */
    char name[64]; /* "native", "cudaMallocAsync", "pluggable", ...                           */
};

/* A function with `error` returns 0, or -1 with a sentence there (always terminated). */
struct th_hook_api {
    uint32_t struct_size;
    const char* torch_version; /* of the headers it was built with, "2.11.0" */
    int (*describe)(struct th_allocator_info* info, char* error, uint32_t error_size);
    int (*attach)(th_segment_callback callback, void* user, char* error, uint32_t error_size);
    int (*snapshot)(th_segment_callback callback, void* user, char* error, uint32_t error_size);
    /* While *scopes is not 0, TH_BLOCK_ALLOC is told too. Before attach(); the number lives for
     * ever. */
    void (*watch_blocks)(const int32_t* scopes);
    /* Allocations of the threads for which `mine(user)` is not 0 come from the pool, until
     * end_pool. Of one pool only one at a time may be begun. */
    int (*begin_pool)(int32_t device, const uint64_t pool[2], int32_t (*mine)(void* user),
                      void* user, char* error, uint32_t error_size);
    int (*end_pool)(int32_t device, const uint64_t pool[2], char* error, uint32_t error_size);
    /* 1: the calling thread's current stream on the device is being captured into a graph. */
    int32_t (*capturing)(int32_t device);
    int32_t last_action; /* the newest th_segment_action that it tells; nobody reads it any more */
    /* 1: torch would give back the memory of a pool now, as the calling thread does not capture on
     * the device; before 2.13: as no pool of the device is begun and no graph is captured on it. */
    int32_t (*quiet)(int32_t device);
    /* Gives up the pool for which a MemPool was made; that MemPool must never be destroyed. What
     * the pool holds free is from then on a part of torch's cache. Calls no CUDA. */
    int (*drop_pool)(int32_t device, const uint64_t pool[2], char* error, uint32_t error_size);
    /* Has torch give to the driver what a dropped pool holds free, if the device is quiet. */
    void (*empty_pool)(const uint64_t pool[2]);
    /* TH_BLOCK_FREE and TH_BLOCK_FREED are told of addresses from span[0] up to span[1]. Before
     * attach(); both numbers live for ever, and may change at any time. */
    void (*watch_frees)(const uint64_t* span);
    /* Lets torch look which streams are done with memory that was given back, which it does in
     * each allocation while the device is quiet(). Not while the calling thread captures. */
    int (*settle)(int32_t device, char* error, uint32_t error_size);
    /* 1: torch looks which streams are done also while a pool is begun (from 2.13 on). */
    int32_t looks_beside_pools;
};

const struct th_hook_api* th_hook_get_api(void);

#ifdef __cplusplus
}
#endif
