/* Launches kernels of 20 ms without waiting and then waits for them: prints after how long it had launched all, and after how long they were done, as one
 * JSON object. */
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
    /* What the first takes is known before the others are launched. */
    CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu(cuCtxSynchronize)());
    long began = milliseconds();
    for (int i = 0; i < LAUNCHES; i++) CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    long queued = milliseconds() - began;
    CHECK(cu(cuCtxSynchronize)());
    printf("{\"queued_ms\":%ld,\"done_ms\":%ld}\n", queued, milliseconds() - began);
    return 0;
}
