/* Every kind of device allocation, behind one pair of functions. */
#ifndef KINDS_H
#define KINDS_H

#include "driver.h"
#include <string.h>

typedef enum {
    LINEAR,
    PITCH,
    MANAGED,
    ASYNC,
    ASYNC_PTSZ,
    POOL,
    POOL_PTSZ,
    VMM,
    ARRAY,
    KINDS,
} kind;

static const char *const kind_names[KINDS] = {
    "cuMemAlloc_v2",           "cuMemAllocPitch_v2",           "cuMemAllocManaged", "cuMemAllocAsync", "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz", "cuMemCreate",
    "cuArrayCreate_v2",
};

static inline kind kind_of(const char *name) {
    for (int k = 0; k < KINDS; k++)
        if (!strcmp(kind_names[k], name)) return k;
    fprintf(stderr, "no such kind of allocation: %s\n", name);
    exit(2);
}

enum { ROW_BYTES = 64 * 1024, CU_AD_FORMAT_FLOAT = 0x20 };

static inline CUresult allocate_by(kind k, size_t bytes, CUstream stream, unsigned long long *out) {
    static const CUmemAllocationProp on_device_0 = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    CUDA_ARRAY_DESCRIPTOR rows = {
        .width = ROW_BYTES / sizeof(float),
        .height = bytes / ROW_BYTES,
        .format = CU_AD_FORMAT_FLOAT,
        .channels = 1,
    };
    CUmemoryPool pool;
    size_t pitch;
    switch (k) {
    case LINEAR: return cu(cuMemAlloc_v2)(out, bytes);
    case PITCH: return cu(cuMemAllocPitch_v2)(out, &pitch, ROW_BYTES, bytes / ROW_BYTES, 4);
    case MANAGED: return cu(cuMemAllocManaged)(out, bytes, CU_MEM_ATTACH_GLOBAL);
    case ASYNC: return cu(cuMemAllocAsync)(out, bytes, stream);
    case ASYNC_PTSZ: return cu(cuMemAllocAsync_ptsz)(out, bytes, stream);
    case POOL: CHECK(cu(cuDeviceGetDefaultMemPool)(&pool, 0)); return cu(cuMemAllocFromPoolAsync)(out, bytes, pool, stream);
    case POOL_PTSZ:
        CHECK(cu(cuDeviceGetDefaultMemPool)(&pool, 0));
        return cu(cuMemAllocFromPoolAsync_ptsz)(out, bytes, pool, stream);
    case VMM: return cu(cuMemCreate)(out, bytes, &on_device_0, 0);
    case ARRAY: return cu(cuArrayCreate_v2)((CUarray *)out, &rows);
    default: abort();
    }
}

/* Allocates `bytes`, a multiple of 2 MiB, which is the largest granularity of any kind. Checks that
 * a refused allocation leaves nothing behind. */
static inline CUresult allocate(kind k, size_t bytes, CUstream stream, unsigned long long *out) {
    unsigned long long before = *out = 0xdead;
    CUresult code = allocate_by(k, bytes, stream, out);
    if (code != CUDA_SUCCESS && *out && *out != before) {
        fprintf(stderr, "%s left a dead address\n", kind_names[k]);
        exit(3);
    }
    return code;
}

static inline CUresult release(kind k, CUstream stream, unsigned long long allocation) {
    switch (k) {
    case LINEAR:
    case PITCH:
    case MANAGED: return cu(cuMemFree_v2)(allocation);
    case ASYNC:
    case POOL: return cu(cuMemFreeAsync)(allocation, stream);
    case ASYNC_PTSZ:
    case POOL_PTSZ: return cu(cuMemFreeAsync_ptsz)(allocation, stream);
    case VMM: return cu(cuMemRelease)(allocation);
    case ARRAY: return cu(cuArrayDestroy)((CUarray)allocation);
    default: abort();
    }
}

#endif
