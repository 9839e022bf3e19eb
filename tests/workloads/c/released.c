/* released ROUNDS: in each round queues 300 ms of kernels behind a host function. The function ends
 * only after the last launch. Prints the longest time of a launch call in each round, ms. */
#include "driver.h"

enum { LAUNCHES = 300 };

static int is_released;

static void await_release(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&is_released, __ATOMIC_SEQ_CST)) nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
}

int main(int argc, char **argv) {
    long rounds = argc == 2 ? atol(argv[1]) : 0;
    usage(rounds > 0, "released ROUNDS");
    open_context();
    CUfunction kernel = load_kernel("busy_1000us");
    CUstream stream = new_stream();
    /* Makes the kernel's time known, because deepres bounds the queued work by it. */
    for (int i = 0; i < 20; i++) CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CHECK(cu(cuStreamSynchronize)(stream));
    printf("{\"longest_ms\":[");
    for (long round = 0; round < rounds; round++) {
        long long longest_ns = 0;
        __atomic_store_n(&is_released, 0, __ATOMIC_SEQ_CST);
        CHECK(cu(cuLaunchHostFunc)(stream, await_release, NULL));
        for (int i = 0; i < LAUNCHES; i++) {
            long long began_ns = now_ns();
            CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
            long long took_ns = now_ns() - began_ns;
            if (took_ns > longest_ns) longest_ns = took_ns;
        }
        __atomic_store_n(&is_released, 1, __ATOMIC_SEQ_CST);
        CHECK(cu(cuStreamSynchronize)(stream));
        printf("%s%.0f", round ? "," : "", longest_ns / 1e6);
    }
    printf("]}\n");
    return 0;
}
