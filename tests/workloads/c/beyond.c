/* beyond LIMIT_BYTES: fills its limit with device memory and then examines memory beyond the limit.
 * The program checks the calls that give such memory, its kind and its frees. It repeats this
 * during captures, in a forked child, and at the end of the context. Prints one JSON line of
 * results, which the test compares with known values. */
#include "driver.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, SMALL = 10, ROW_BYTES = 1000, ROWS = 8192, MODES = 3 };
enum { CU_POINTER_ATTRIBUTE_IS_MANAGED = 8 };

static CUstream stream;

static int is_managed(CUdeviceptr at) {
    unsigned char managed = 0;
    CHECK(cu(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
    return managed;
}

/* Whether memory keeps the bytes that are copied into it, at both ends. */
static int keeps(CUdeviceptr at, size_t bytes) {
    unsigned char sent[64], got[64];
    for (int end = 0; end < 2; end++) {
        CUdeviceptr place = end ? at + bytes - sizeof sent : at;
        memset(sent, 7 + end, sizeof sent);
        CHECK(cu(cuMemcpyHtoDAsync_v2)(place, sent, sizeof sent, stream));
        CHECK(cu(cuStreamSynchronize)(stream));
        CHECK(cu(cuMemcpyDtoH_v2)(got, place, sizeof got));
        if (memcmp(sent, got, sizeof got)) return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    usage(argc == 2, "beyond LIMIT_BYTES");
    size_t limit = strtoull(argv[1], NULL, 10), free_bytes, total_bytes, pitch = 0;
    CUcontext context = open_context();
    CUfunction kernel = load_kernel("quick");
    CUdeviceptr whole, linear, rows, managed, small[SMALL], other;
    stream = new_stream();
    CHECK(cu(cuMemAlloc_v2)(&whole, limit));

    int linear_code = cu(cuMemAlloc_v2)(&linear, 32 * MIB);
    int rows_code = cu(cuMemAllocPitch_v2)(&rows, &pitch, ROW_BYTES, ROWS, 4);
    int managed_code = cu(cuMemAllocManaged)(&managed, 8 * MIB, CU_MEM_ATTACH_GLOBAL);
    if (linear_code || rows_code || managed_code) {
        printf("{\"refused\":[%d,%d,%d]}\n", linear_code, rows_code, managed_code);
        wait_for_end_of_input();
        return 0;
    }
    int kinds = is_managed(whole) * 8 + is_managed(linear) * 4 + is_managed(rows) * 2 + is_managed(managed);
    int kept = keeps(linear, 32 * MIB) && keeps(rows, pitch * ROWS) && keeps(managed, 8 * MIB);
    for (int i = 0; i < SMALL; i++)
        CHECK(cu(cuMemAlloc_v2)(&small[i], 1000 * (i + 1)));
    int pooled_code = cu(cuMemAllocAsync)(&other, 32 * MIB, stream);
    static const CUmemAllocationProp on_device_0 = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    CUmemHandle handle;
    int physical_code = cu(cuMemCreate)(&handle, 2 * MIB, &on_device_0, 0);
    CUDA_ARRAY_DESCRIPTOR square = {.width = 1024, .height = 1024, .format = 0x20, .channels = 1};
    CUarray array;
    int array_code = cu(cuArrayCreate_v2)(&array, &square);
    char exported[64];
    int is_exported = cu(cuIpcGetMemHandle)((void *)exported, linear) == 0;
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));

    /* Allocates during captures in every mode; some modes forbid allocations. */
    int capture_codes[MODES], end_codes[MODES];
    for (int mode = 0; mode < MODES; mode++) {
        CUgraph graph = NULL;
        CHECK(cu(cuStreamBeginCapture_v2)(stream, mode));
        CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        capture_codes[mode] = cu(cuMemAlloc_v2)(&other, 4 * MIB);
        CUdeviceptr beyond = other;
        int was_given = !capture_codes[mode];
        end_codes[mode] = cu(cuStreamEndCapture)(stream, &graph);
        if (was_given) CHECK(cu(cuMemFree_v2)(beyond));
        if (graph) CHECK(cu(cuGraphDestroy)(graph));
    }

    /* A free in a forked child returns an error of the driver and does not touch the parent's
     * memory. */
    pid_t child = fork();
    if (child == 0) _exit(cu(cuMemFree_v2)(linear) == 0);
    int child_status = -1;
    waitpid(child, &child_status, 0);

    int again_code = cu(cuMemFree_v2)(rows) | cu(cuMemFreeAsync)(linear, stream);
    int twice_code = cu(cuMemFree_v2)(linear);
    for (int i = 0; i < SMALL; i++)
        CHECK(i % 2 ? cu(cuMemFreeAsync_ptsz)(small[i], NULL) : cu(cuMemFree_v2)(small[i]));
    CHECK(cu(cuMemFree_v2)(managed));

    /* Memory beyond the limit ends with its context. */
    CHECK(cu(cuMemAlloc_v2)(&linear, 64 * MIB));
    CHECK(cu(cuCtxDestroy_v2)(context));
    CUdevice device;
    CHECK(cu(cuDeviceGet)(&device, 0));
    CHECK(cu(cuDevicePrimaryCtxRetain)(&context, device));
    CHECK(cu(cuCtxSetCurrent)(context));
    CHECK(cu(cuMemAlloc_v2)(&whole, limit));
    CHECK(cu(cuMemAlloc_v2)(&linear, 64 * MIB));
    CHECK(cu(cuDevicePrimaryCtxReset_v2)(device));
    CHECK(cu(cuDevicePrimaryCtxRetain)(&context, device));
    CHECK(cu(cuCtxSetCurrent)(context));
    CHECK(cu(cuMemAlloc_v2)(&whole, limit));
    printf("{\"managed\":%d,\"kept\":%d,\"pitch\":%zu,\"pooled\":%d,\"physical\":%d,\"array\":%d,\"exported\":%d,\"free\":%zu,\"total\":%zu,"
           "\"captured\":[%d,%d,%d],\"ended\":[%d,%d,%d],\"child\":%d,\"freed\":%d,\"twice\":%d}\n",
           kinds, kept, pitch, pooled_code, physical_code, array_code, is_exported, free_bytes, total_bytes, capture_codes[0],
           capture_codes[1], capture_codes[2], end_codes[0], end_codes[1], end_codes[2], child_status, again_code, twice_code);
    wait_for_end_of_input();
    return 0;
}
