/* walked allocate|free|refused KIND BYTES: one call of memory between two signals to itself, at which whoever traces it begins and ends to walk through it.
 * Says `ready` before and goes on when a line comes in. The calls that it begins with have the driver and the library ready for it. */
#include "kinds.h"
#include <signal.h>

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: walked allocate|free|refused KIND BYTES\n");
        return 2;
    }
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
    /* A multiple of what any kind comes in, and less than the limit: it is asked for. */
    size_t too_much = (free_bytes / (2 << 20) + 1) * (2 << 20);
    puts("ready");
    fflush(stdout);
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
