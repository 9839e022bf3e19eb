/* boot: initialises the driver, which is when a process gets its session, and stays until its input ends. Prints one JSON line: how
 * long cuInit took, and when it returned (CLOCK_MONOTONIC). */
#include "driver.h"
#include <time.h>

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(void) {
    /* Looking the driver up is no part of the figure. */
    load_driver();
    long long begin_ns = now_ns();
    CHECK(cu(cuInit)(0));
    long long end_ns = now_ns();
    printf("{\"init_ns\":%lld,\"at_ns\":%lld}\n", end_ns - begin_ns, end_ns);
    wait_for_end_of_input();
    return 0;
}
