/* fill CHUNK_BYTES [KIND…]: for each kind (default: all) allocates chunks until a call fails, frees
 * them all, and repeats this once. Freed memory must be usable again.
 *
 * Prints one JSON line: the tenant's view of the device. For each kind it has the bytes allocated,
 * the code of the failing call, and the result of the second round. */
#include "kinds.h"

enum { MAX_CHUNKS = 1 << 16 };

static unsigned long long chunks[MAX_CHUNKS];

static size_t fill(kind k, size_t chunk_bytes, CUstream stream, CUresult *code, size_t *free_when_full) {
    size_t count = 0, total;
    while (count < MAX_CHUNKS && (*code = allocate(k, chunk_bytes, stream, &chunks[count])) == CUDA_SUCCESS)
        count++;
    CHECK(cu(cuMemGetInfo_v2)(free_when_full, &total));
    for (size_t i = 0; i < count; i++)
        CHECK(release(k, stream, chunks[i]));
    CHECK(cu(cuCtxSynchronize)());
    CUmemoryPool pool;
    CHECK(cu(cuDeviceGetDefaultMemPool)(&pool, 0));
    CHECK(cu(cuMemPoolTrimTo)(pool, 0));
    return count * chunk_bytes;
}

int main(int argc, char **argv) {
    usage(argc >= 2, "fill CHUNK_BYTES [KIND...]");
    size_t chunk_bytes = strtoull(argv[1], NULL, 10);
    size_t total = 0, info_free = 0, info_total = 0;
    open_context();
    CHECK(cu(cuDeviceTotalMem_v2)(&total, 0));
    CHECK(cu(cuMemGetInfo_v2)(&info_free, &info_total));
    CUstream stream = new_stream();
    printf("{\"way\":\"%s\",\"device_total\":%zu,\"info_free\":%zu,\"info_total\":%zu,\"kinds\":[", WAY, total, info_free,
           info_total);
    int tried = argc > 2 ? argc - 2 : KINDS;
    for (int i = 0; i < tried; i++) {
        kind k = argc > 2 ? kind_of(argv[i + 2]) : (kind)i;
        /* For the _ptsz variants NULL means the thread's own default stream. */
        CUstream on = k == ASYNC_PTSZ || k == POOL_PTSZ ? NULL : stream;
        CUresult first_code, second_code;
        size_t free_when_full, ignored;
        size_t first = fill(k, chunk_bytes, on, &first_code, &free_when_full);
        size_t second = fill(k, chunk_bytes, on, &second_code, &ignored);
        printf("%s{\"kind\":\"%s\",\"bytes\":%zu,\"code\":%d,\"again_bytes\":%zu,\"again_code\":%d,\"free_when_full\":%zu}",
               i ? "," : "", kind_names[k], first, first_code, second, second_code, free_when_full);
        fflush(stdout);
    }
    printf("]}\n");
    return 0;
}
