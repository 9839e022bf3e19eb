/* walked allocate|free|refused KIND BYTES: makes one memory call between two signals to itself. A
 * tracer steps through the process between the signals. The program prints `ready` and goes on when
 * a line comes in. The calls before make the driver and the interposer ready. */
#include "kinds.h"
#include <signal.h>

int main(int argc, char **argv) {
    usage(argc == 4, "walked allocate|free|refused KIND BYTES");
    kind k = kind_of(argv[2]);
    size_t bytes = strtoull(argv[3], NULL, 10);
    unsigned long long at;
    open_context();
    CHECK(allocate(k, bytes, NULL, &at));
    CHECK(release(k, NULL, at));
    CHECK(cu(cuCtxSynchronize)());
    if (!strcmp(argv[1], "free")) CHECK(allocate(k, bytes, NULL, &at));
    size_t free_bytes, total_bytes;
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
    /* A multiple of every kind's granularity: more than the free memory, but below the limit, so
     * the request reaches deepres' check of the ledger. */
    size_t too_much = (free_bytes / (2 << 20) + 1) * (2 << 20);
    say("ready");
    getchar();
    CUresult code = CUDA_SUCCESS, expected = CUDA_SUCCESS;
    raise(SIGUSR1);
    if (!strcmp(argv[1], "allocate")) {
        code = allocate(k, bytes, NULL, &at);
    } else if (!strcmp(argv[1], "free")) {
        code = release(k, NULL, at);
    } else {
        code = allocate(k, too_much, NULL, &at);
        expected = CUDA_ERROR_OUT_OF_MEMORY;
    }
    raise(SIGUSR1);
    if (code == expected) return 0;
    fprintf(stderr, "%s of %s returned %d\n", argv[1], argv[2], code);
    return 1;
}
