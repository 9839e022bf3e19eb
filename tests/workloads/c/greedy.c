/* greedy MS: for MS milliseconds allocates as much memory as it gets, piece by piece, frees all of
 * it, and begins again. Prints the most memory that it had, in bytes. */
#include "driver.h"

enum { MOST_PIECES = 4096 };

static const size_t PIECE_BYTES = (size_t)16 << 20;

int main(int count, char **words) {
    CUdeviceptr pieces[MOST_PIECES];
    size_t most = 0;
    if (count != 2) return 2;
    open_context();
    for (long long until_ns = now_ns() + atoll(words[1]) * MS_NS; now_ns() < until_ns;) {
        size_t held = 0;
        while (held < MOST_PIECES && cu(cuMemAlloc_v2)(&pieces[held], PIECE_BYTES) == CUDA_SUCCESS) held++;
        if (held > most) most = held;
        while (held) CHECK(cu(cuMemFree_v2)(pieces[--held]));
    }
    printf("%zu\n", most * PIECE_BYTES);
    return 0;
}
