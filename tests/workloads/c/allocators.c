/* allocators grow|preallocate|expandable: allocates memory as deep-learning frameworks do, until no
 * more is left.
 *
 *   grow         TensorFlow's BFC allocator with memory growth: regions that double in size. If
 *                the driver has no such region, the allocator asks for nine tenths of the size,
 *                again and again, down to the size needed at the moment.
 *   preallocate  JAX's allocator: three quarters of the free memory at once. All allocations come
 *                from this region.
 *   expandable   PyTorch's caching allocator with expandable segments: one range of addresses for
 *                all memory, into which physical memory is mapped piece by piece. The pieces
 *                freed last are unmapped and released, and mapped again.
 *
 * Prints one JSON line: the first answers of cuMemGetInfo and cuDeviceTotalMem, the bytes
 * allocated, and the bytes left. */
#include "driver.h"
#include <string.h>

enum { MIB = 1 << 20, MAX_REGIONS = 4096 };
static const size_t NEED_BYTES = 2 * MIB;           /* size of a tensor that needs a region */
static const size_t SEGMENT_BYTES = 20 * MIB;       /* piece of an expandable segment */
static const double BACK_OFF = 0.9;                 /* next size after a refused region */
static const double PREALLOCATED = 0.75;            /* part of the free memory */

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static int is_given(CUresult code) {
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "an allocation returned %d\n", code);
        exit(1);
    }
    return code == CUDA_SUCCESS;
}

static size_t grow(void) {
    size_t got = 0, next = 2 * MIB;
    for (int region = 0; region < MAX_REGIONS; region++) {
        CUdeviceptr at;
        size_t bytes = next;
        while (!is_given(cu(cuMemAlloc_v2)(&at, bytes))) {
            bytes = round_up((size_t)((double)bytes * BACK_OFF), 256);
            if (bytes < NEED_BYTES) return got;
        }
        got += bytes;
        if (bytes == next) next *= 2;
    }
    return got;
}

static size_t preallocate(size_t free_bytes) {
    CUdeviceptr at;
    size_t bytes = (size_t)((double)free_bytes * PREALLOCATED);
    CHECK(cu(cuMemAlloc_v2)(&at, bytes));
    return bytes;
}

static size_t expandable(size_t total_bytes) {
    static const CUmemAllocationProp on_device_0 = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    static const CUmemAccessDesc read_write = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t range = round_up(total_bytes + total_bytes / 8, SEGMENT_BYTES), got = 0;
    CUdeviceptr base;
    CHECK(cu(cuMemAddressReserve)(&base, range, 0, 0, 0));
    for (int pass = 0; pass < 2; pass++) {
        CUmemHandle piece;
        while (got + SEGMENT_BYTES <= range && is_given(cu(cuMemCreate)(&piece, SEGMENT_BYTES, &on_device_0, 0))) {
            CHECK(cu(cuMemMap)(base + got, SEGMENT_BYTES, 0, piece, 0));
            CHECK(cu(cuMemSetAccess)(base + got, SEGMENT_BYTES, &read_write, 1));
            /* The mapping keeps the piece alive. */
            CHECK(cu(cuMemRelease)(piece));
            got += SEGMENT_BYTES;
        }
        if (pass) break;
        size_t kept = got / SEGMENT_BYTES / 2 * SEGMENT_BYTES;
        CHECK(cu(cuMemUnmap)(base + kept, got - kept));
        got = kept;
    }
    return got;
}

int main(int argc, char **argv) {
    size_t free_bytes, info_total, device_total, left, ignored, got;
    usage(argc == 2, "allocators grow|preallocate|expandable");
    open_context();
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &info_total));
    CHECK(cu(cuDeviceTotalMem_v2)(&device_total, 0));
    if (!strcmp(argv[1], "grow"))
        got = grow();
    else if (!strcmp(argv[1], "preallocate"))
        got = preallocate(free_bytes);
    else
        got = expandable(device_total);
    CHECK(cu(cuMemGetInfo_v2)(&left, &ignored));
    printf("{\"free\":%zu,\"info_total\":%zu,\"device_total\":%zu,\"got\":%zu,\"left\":%zu}\n", free_bytes, info_total, device_total,
           got, left);
    wait_for_end_of_input();
    return 0;
}
