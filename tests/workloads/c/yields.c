/* yields BYTES: allocates BYTES, prints `holding`, and runs kernels of a millisecond until SIGUSR2
 * comes. Then it frees its memory and prints `freed`. */
#include "driver.h"
#include <signal.h>
#include <stdint.h>

enum { CHUNK_BYTES = 32 << 20, MAX_CHUNKS = 4096 };

static volatile sig_atomic_t is_pressed;

static void press(int signal) {
    (void)signal;
    is_pressed = 1;
}

int main(int argc, char **argv) {
    usage(argc == 2, "yields BYTES");
    size_t chunks = strtoull(argv[1], NULL, 10) / CHUNK_BYTES;
    CUdeviceptr held[MAX_CHUNKS];
    struct sigaction action = {.sa_handler = press, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
    open_context();
    CUfunction kernel = load_kernel("busy_1000us");
    CUstream stream = new_stream();
    for (size_t i = 0; i < chunks; i++)
        CHECK(cu(cuMemAlloc_v2)(&held[i], CHUNK_BYTES));
    say("holding");
    while (!is_pressed) {
        CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        CHECK(cu(cuStreamSynchronize)(stream));
    }
    for (size_t i = 0; i < chunks; i++)
        CHECK(cu(cuMemFree_v2)(held[i]));
    say("freed");
    wait_for_end_of_input();
    return 0;
}
