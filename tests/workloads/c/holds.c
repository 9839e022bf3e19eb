/* holds BYTES: allocates BYTES, prints `holding`, and does nothing until its input ends. */
#include "driver.h"

enum { CHUNK_BYTES = 32 << 20 };

int main(int argc, char **argv) {
    usage(argc == 2, "holds BYTES");
    size_t chunks = strtoull(argv[1], NULL, 10) / CHUNK_BYTES;
    open_context();
    for (size_t i = 0; i < chunks; i++) {
        CUdeviceptr held;
        CHECK(cu(cuMemAlloc_v2)(&held, CHUNK_BYTES));
    }
    say("holding");
    wait_for_end_of_input();
    return 0;
}
