/* past: makes calls that deepres sees but does not account for. Prints the number of each as one
 * JSON object, then stays until its standard input is closed. */
#include "driver.h"

enum { HOST_ALLOCATIONS = 3, WRITES = 5, OPENINGS = 2, HEAPS = 4, MALLOC_HEAP_SIZE = 2 };

int main(void) {
    CUcontext context = open_context();
    CUdeviceptr word;
    CUstream stream = new_stream();
    CHECK(cu(cuMemAlloc_v2)(&word, 64));
    void *host[HOST_ALLOCATIONS];
    for (int i = 0; i < HOST_ALLOCATIONS; i++)
        CHECK(cu(cuMemHostAlloc)(&host[i], 4096, 0));
    for (int i = 0; i < WRITES; i++) {
        CHECK(cu(cuStreamWriteValue32_v2)(stream, word, i, 0));
        CHECK(cu(cuStreamWriteValue32_v2_ptsz)(NULL, word + 4, i, 0));
    }
    for (int i = 0; i < HEAPS; i++)
        CHECK(cu(cuCtxSetLimit)(MALLOC_HEAP_SIZE, (size_t)8 << 20));
    CHECK(cu(cuCtxSynchronize)());
    /* No process exported this handle. The call still bypasses deepres, and fails as it would
     * without deepres. */
    CUipcMemHandle nothing = {{0}};
    CUdeviceptr opened = 0;
    int codes[OPENINGS];
    for (int i = 0; i < OPENINGS; i++)
        codes[i] = cu(cuIpcOpenMemHandle_v2)(&opened, nothing, 1);
    unsigned written = 0;
    CHECK(cu(cuMemcpyDtoH_v2)(&written, word, sizeof written));
    printf("{\"cuMemHostAlloc\":%d,\"cuStreamWriteValue32_v2\":%d,\"cuStreamWriteValue32_v2_ptsz\":%d,"
           "\"cuIpcOpenMemHandle_v2\":%d,\"cuCtxSetLimit\":%d,\"code\":%d,\"written\":%u}\n",
           HOST_ALLOCATIONS, WRITES, WRITES, OPENINGS, HEAPS, codes[OPENINGS - 1], written);
    wait_for_end_of_input();
    CHECK(cu(cuCtxDestroy_v2)(context));
    return 0;
}
