/* boot: initialises the driver and stays until its input ends. At cuInit a process gets its
 * session. Prints one JSON line: the time that cuInit took, and when it returned (CLOCK_MONOTONIC).
 */
#include "driver.h"
#include <time.h>

int main(void) {
    /* The time excludes the look-up of the driver. */
    load_driver();
    long long begin_ns = now_ns();
    CHECK(cu(cuInit)(0));
    long long end_ns = now_ns();
    printf("{\"init_ns\":%lld,\"at_ns\":%lld}\n", end_ns - begin_ns, end_ns);
    wait_for_end_of_input();
    return 0;
}
