/* view: prints the tenant's view of the device's memory whenever it changes, with the time, one
 * JSON line each, until its standard input is closed. */
#include "driver.h"
#include <poll.h>

int main(void) {
    size_t free_bytes, total_bytes, last_total = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    open_context();
    /* Looks once a millisecond, until the input ends. */
    while (poll(&input, 1, 1) == 0) {
        CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
        if (total_bytes != last_total) {
            printf("{\"total\":%zu,\"free\":%zu,\"at_ns\":%lld}\n", total_bytes, free_bytes, now_ns());
            fflush(stdout);
            last_total = total_bytes;
        }
    }
    return 0;
}
