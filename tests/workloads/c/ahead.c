/* ahead: launches kernels of 20 ms without waiting, then waits for them.
 *
 * Prints one JSON object: the time after which all kernels were launched, and the time after which
 * they were done. */
#include <time.h>

#include "driver.h"

enum { LAUNCHES = 20 };

static long milliseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int main(void) {
    open_context();
    CUfunction kernel = load_kernel("busy_20000us");
    /* The first launch makes the kernel's time known to deepres before the others come. */
    CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu(cuCtxSynchronize)());
    long began = milliseconds();
    for (int i = 0; i < LAUNCHES; i++) CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    long queued = milliseconds() - began;
    CHECK(cu(cuCtxSynchronize)());
    printf("{\"queued_ms\":%ld,\"done_ms\":%ld}\n", queued, milliseconds() - began);
    return 0;
}
