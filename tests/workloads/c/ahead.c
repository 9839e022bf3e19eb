/* ahead: launches kernels of 20 ms without waiting, then waits for them.
 *
 * Prints one JSON object: the time after which all kernels were launched, and the time after which
 * they were done. */
#include "driver.h"

enum { LAUNCHES = 20 };

int main(void) {
    open_context();
    CUfunction kernel = load_kernel("busy_20000us");
    /* The first launch makes the kernel's time known to deepres before the others come. */
    CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu(cuCtxSynchronize)());
    long long began_ns = now_ns();
    for (int i = 0; i < LAUNCHES; i++) CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    long long queued_ms = (now_ns() - began_ns) / MS_NS;
    CHECK(cu(cuCtxSynchronize)());
    printf("{\"queued_ms\":%lld,\"done_ms\":%lld}\n", queued_ms, (now_ns() - began_ns) / MS_NS);
    return 0;
}
