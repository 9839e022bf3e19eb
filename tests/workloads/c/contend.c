/* contend LOG OPERATIONS PROCESS THREADS [pools]: threads of several processes compete for their
 * tenant's memory and log every operation.
 *
 * LOG is a file that all processes share: the number of operations begun, then a record for each. A
 * process carries out operations until OPERATIONS have begun, prints `done`, and frees its memory
 * when a line comes in.
 *
 * The driver serves most sizes from blocks of their own, so the program knows the charge of these
 * allocations. Small allocations share blocks: each counts for at least its length and at most a
 * block. With `pools` the threads also allocate from a pool. A pool's allocation is as long as the
 * pool's growth, and the pool releases the memory when it is freed. */
#include "kinds.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* One of SMALL_ONE_IN allocations is small. So the uncertainty about them is small against the
 * limit. */
enum { HELD_PER_THREAD = 48, MAX_BLOCKS = 12, SMALL_ONE_IN = 16, SMALL_MAX_BYTES = 1 << 20, LOG_HEADER_BYTES = 64 };
static const size_t BLOCK_BYTES = 2 << 20, POOL_GROWTH_BYTES = 32 << 20;

/* A record for the judge of the run. A thread writes `begin_ns` first and `end_ns` last; 0 means
 * "not yet". */
struct record {
    _Atomic uint64_t begin_ns;
    _Atomic uint64_t end_ns;
    uint64_t bytes;     /* the smallest possible charge */
    uint64_t most_bytes; /* the largest possible charge */
    uint64_t operation; /* of a free: number of the allocation, plus one; of an allocation: 0 */
    uint64_t told_ns;   /* of a free: when the driver was told, if it says so */
    uint32_t process;
    uint32_t code;
};

struct log {
    _Atomic uint64_t begun;
    char padding[LOG_HEADER_BYTES - sizeof(uint64_t)];
    struct record records[];
};

static struct log *book;
static uint64_t operations;
static uint32_t process;
static CUcontext context;
static CUmemoryPool pool;
static int races_for_pools;
/* Export of the simulated driver: the time at which this thread last told it to free something. */
static uint64_t (*told_ns)(void);
static pthread_barrier_t finished, may_free;


static int is_pooled(kind k) { return k == ASYNC || k == POOL_PTSZ; }

/* The pool gets freed memory back when the stream reaches the free, and keeps it until it is
 * trimmed. */
static CUresult give_back(kind k) {
    CUresult code = k == ASYNC ? cu(cuStreamSynchronize)(NULL) : cu(cuStreamSynchronize_ptsz)(NULL);
    return code == CUDA_SUCCESS ? cu(cuMemPoolTrimTo)(pool, 0) : code;
}

static unsigned next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33);
}

/* Returns a record for another operation, or NULL if all operations have begun. */
static struct record *begin(uint64_t bytes, uint64_t most_bytes, uint64_t of, uint64_t *number) {
    *number = atomic_fetch_add(&book->begun, 1);
    if (*number >= operations) return NULL;
    struct record *record = &book->records[*number];
    record->bytes = bytes;
    record->most_bytes = most_bytes;
    record->operation = of;
    record->process = process;
    atomic_store(&record->begin_ns, now_ns());
    return record;
}

static void end(struct record *record, CUresult code) {
    record->code = (uint32_t)code;
    atomic_store(&record->end_ns, now_ns());
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "an operation returned %d\n", code);
        exit(1);
    }
}

static void *worker(void *argument) {
    static const kind kinds[] = {LINEAR, PITCH, MANAGED, VMM, ARRAY, ASYNC, POOL_PTSZ};
    enum { POOLED = 2 };
    const unsigned raced = sizeof kinds / sizeof *kinds - (races_for_pools ? 0 : POOLED);
    uint64_t random = ((uint64_t)process << 32 | (uint64_t)(size_t)argument) * 2654435761u + 1;
    struct {
        kind k;
        uint64_t bytes, most_bytes, operation;
        unsigned long long allocation;
    } held[HELD_PER_THREAD] = {0};
    uint64_t number;
    int was_refused = 0;
    CHECK(cu(cuCtxSetCurrent)(context));
    for (;;) {
        unsigned slot = next_random(&random) % HELD_PER_THREAD;
        /* After a refusal the thread frees something first, if it has anything. */
        for (int other = 0; was_refused && !held[slot].bytes && other < HELD_PER_THREAD; other++)
            slot = (slot + 1) % HELD_PER_THREAD;
        was_refused = 0;
        if (held[slot].bytes) {
            struct record *record = begin(held[slot].bytes, held[slot].most_bytes, held[slot].operation + 1, &number);
            if (!record) break;
            CUresult code = release(held[slot].k, NULL, held[slot].allocation);
            if (code == CUDA_SUCCESS && is_pooled(held[slot].k)) code = give_back(held[slot].k);
            record->told_ns = told_ns ? told_ns() : 0;
            end(record, code);
            held[slot].bytes = 0;
            continue;
        }
        int is_small = next_random(&random) % SMALL_ONE_IN == 0;
        kind k = is_small ? LINEAR : kinds[next_random(&random) % raced];
        uint64_t most = is_small       ? BLOCK_BYTES
                        : is_pooled(k) ? POOL_GROWTH_BYTES
                                       : (1 + next_random(&random) % MAX_BLOCKS) * BLOCK_BYTES;
        /* Only plain linear memory may have odd sizes. */
        uint64_t bytes = is_small      ? 1 + next_random(&random) % SMALL_MAX_BYTES
                         : k == LINEAR ? most - next_random(&random) % (BLOCK_BYTES / 2)
                                       : most;
        uint64_t least = is_small ? bytes : most;
        struct record *record = begin(least, most, 0, &number);
        if (!record) break;
        CUresult code = allocate(k, bytes, NULL, &held[slot].allocation);
        end(record, code);
        was_refused = code != CUDA_SUCCESS;
        if (was_refused) continue;
        held[slot].k = k;
        held[slot].bytes = least;
        held[slot].most_bytes = most;
        held[slot].operation = number;
    }
    pthread_barrier_wait(&finished);
    pthread_barrier_wait(&may_free);
    for (int slot = 0; slot < HELD_PER_THREAD; slot++)
        if (held[slot].bytes) CHECK(release(held[slot].k, NULL, held[slot].allocation));
    CHECK(give_back(ASYNC));
    CHECK(give_back(POOL_PTSZ));
    return NULL;
}

int main(int argc, char **argv) {
    races_for_pools = argc == 6 && !strcmp(argv[5], "pools");
    if (argc != 5 && !races_for_pools) {
        fprintf(stderr, "usage: contend LOG OPERATIONS PROCESS THREADS [pools]\n");
        return 2;
    }
    operations = strtoull(argv[2], NULL, 10);
    process = (uint32_t)atoi(argv[3]);
    int count = atoi(argv[4]);
    int file = open(argv[1], O_RDWR | O_CLOEXEC);
    size_t length = sizeof(struct log) + operations * sizeof(struct record);
    book = file < 0 ? MAP_FAILED : mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (book == MAP_FAILED) {
        perror(argv[1]);
        return 1;
    }
    context = open_context();
    CHECK(cu(cuDeviceGetDefaultMemPool)(&pool, 0));
    unsigned long long all = ~0ull;
    CHECK(cu(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *(void **)&told_ns = driver ? dlsym(driver, "simgpu_told_ns") : NULL;
    pthread_barrier_init(&finished, NULL, (unsigned)count + 1);
    pthread_barrier_init(&may_free, NULL, (unsigned)count + 1);
    pthread_t threads[count];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, worker, (void *)(size_t)(i + 1));
    pthread_barrier_wait(&finished);
    say("done");
    getchar();
    pthread_barrier_wait(&may_free);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    puts("freed");
    wait_for_end_of_input();
    return 0;
}
