/* poolends: destroys a pool while its memory waits to be freed behind half a second of kernels.
 * Prints the free memory before the pool was created, while the kernels run, and after they are
 * done. Before the second number the program has waited for another stream. */
#include <string.h>
#include <unistd.h>

#include "driver.h"

enum { KERNELS = 25, LOOKS = 200, LOOK_EVERY_US = 10 * 1000 };

static const size_t POOLED_BYTES = 128 << 20;

static size_t free_bytes(void) {
    size_t free = 0, total = 0;
    CHECK(cu(cuMemGetInfo_v2)(&free, &total));
    return free;
}

int main(void) {
    CUstream streams[2];
    CUmemoryPool pool;
    CUmemPoolProps props;
    CUdeviceptr at;
    open_context();
    CUfunction busy = load_kernel("busy_20000us"), quick = load_kernel("quick");
    for (int i = 0; i < 2; i++) CHECK(cu(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING));
    memset(&props, 0, sizeof props);
    props.allocation_type = 1; /* pinned */
    props.location.type = 1;   /* a device */
    size_t before = free_bytes();
    CHECK(cu(cuMemPoolCreate)(&pool, &props));
    CHECK(cu(cuMemAllocFromPoolAsync)(&at, POOLED_BYTES, pool, streams[0]));
    for (int i = 0; i < KERNELS; i++) CHECK(cu(cuLaunchKernel)(busy, 1, 1, 1, 1, 1, 1, 0, streams[0], NULL, NULL));
    CHECK(cu(cuMemFreeAsync)(at, streams[0]));
    CHECK(cu(cuMemPoolDestroy)(pool));
    CHECK(cu(cuLaunchKernel)(quick, 1, 1, 1, 1, 1, 1, 0, streams[1], NULL, NULL));
    CHECK(cu(cuStreamSynchronize)(streams[1]));
    size_t meanwhile = free_bytes(), after = 0;
    for (int i = 0; i < LOOKS && after != before; i++) {
        CHECK(cu(cuStreamSynchronize)(streams[0]));
        after = free_bytes();
        usleep(LOOK_EVERY_US);
    }
    printf("{\"before\":%zu,\"meanwhile\":%zu,\"after\":%zu}\n", before, meanwhile, after);
    return 0;
}
