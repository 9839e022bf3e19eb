/* greedy: prints `ready`, and waits for a line of input. Until its input ends, it then allocates as
 * much memory as it gets, piece by piece, frees all of it, and begins again. Prints each new most
 * of the memory that it had, in bytes. */
#include "driver.h"
#include <poll.h>

enum { MOST_PIECES = 4096 };

static const size_t PIECE_BYTES = (size_t)16 << 20;

int main(void) {
    CUdeviceptr pieces[MOST_PIECES];
    size_t most = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    open_context();
    say("ready");
    if (getchar() != '\n') return 2;
    while (poll(&input, 1, 0) == 0) {
        size_t held = 0;
        while (held < MOST_PIECES && cu(cuMemAlloc_v2)(&pieces[held], PIECE_BYTES) == CUDA_SUCCESS) held++;
        if (held > most) {
            most = held;
            printf("%zu\n", most * PIECE_BYTES);
            fflush(stdout);
        }
        while (held) CHECK(cu(cuMemFree_v2)(pieces[--held]));
    }
    return 0;
}
