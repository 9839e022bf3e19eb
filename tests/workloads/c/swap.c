/* swap BYTES KERNELS: allocates BYTES, writes to each chunk, prints `holding`, runs KERNELS kernels
 * of a millisecond, and checks whether its memory has changed. Prints one JSON line: the time that
 * the kernels took, and the number of changed bytes. */
#include "driver.h"
#include <stdint.h>
#include <string.h>

enum { CHUNK_BYTES = 32 << 20, MAX_CHUNKS = 4096, KERNELS_AT_A_TIME = 8 };

int main(int argc, char **argv) {
    usage(argc == 3, "swap BYTES KERNELS");
    size_t chunks = strtoull(argv[1], NULL, 10) / CHUNK_BYTES;
    long kernels = atol(argv[2]);
    CUdeviceptr held[MAX_CHUNKS];
    unsigned char mark[64], found[64];
    open_context();
    CUfunction kernel = load_kernel("busy_1000us");
    CUstream stream = new_stream();
    for (size_t i = 0; i < chunks; i++) {
        CHECK(cu(cuMemAlloc_v2)(&held[i], CHUNK_BYTES));
        memset(mark, (int)(i % 251 + 1), sizeof mark);
        CHECK(cu(cuMemcpyHtoDAsync_v2)(held[i], mark, sizeof mark, stream));
        CHECK(cu(cuStreamSynchronize)(stream));
    }
    say("holding");
    long long begun_ns = now_ns();
    for (long done = 0; done < kernels; done++) {
        CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        if (done % KERNELS_AT_A_TIME == KERNELS_AT_A_TIME - 1) CHECK(cu(cuStreamSynchronize)(stream));
    }
    CHECK(cu(cuStreamSynchronize)(stream));
    long long took_ns = now_ns() - begun_ns;
    size_t changed = 0;
    for (size_t i = 0; i < chunks; i++) {
        memset(mark, (int)(i % 251 + 1), sizeof mark);
        CHECK(cu(cuMemcpyDtoH_v2)(found, held[i], sizeof found));
        for (size_t at = 0; at < sizeof found; at++)
            changed += found[at] != mark[at];
        CHECK(cu(cuMemFree_v2)(held[i]));
    }
    printf("{\"seconds\":%.6f,\"changed\":%zu}\n", took_ns / 1e9, changed);
    wait_for_end_of_input();
    return 0;
}
