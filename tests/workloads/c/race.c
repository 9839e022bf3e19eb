/* race THREADS SECONDS [KIND…]: threads allocate and free chunks of these kinds (default: all) at
 * random and reach the limit again and again.
 *
 * Prints one JSON line: successes, refusals, other error codes, and the most memory that this
 * process held at once. The program counts the memory after each success, so the number is a lower
 * bound. */
#include "kinds.h"
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { HELD_PER_THREAD = 64, STEP_BYTES = 2 << 20, MAX_STEPS = 16 };

static atomic_size_t held_bytes, most_bytes, successes, refusals, other_errors;
static atomic_int stop;
static CUcontext context;
static kind kinds[KINDS];
static unsigned kind_count;

static unsigned next_random(unsigned *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

static void *worker(void *argument) {
    unsigned random = (unsigned)(size_t)argument * 2654435761u;
    struct {
        kind k;
        size_t bytes;
        unsigned long long allocation;
    } held[HELD_PER_THREAD] = {0};
    CHECK(cu(cuCtxSetCurrent)(context));
    CUstream stream = new_stream();
    while (!atomic_load(&stop)) {
        unsigned slot = next_random(&random) % HELD_PER_THREAD;
        if (held[slot].bytes) {
            /* The program's count falls before the driver's, so that it never claims more memory
             * than there was. */
            atomic_fetch_sub(&held_bytes, held[slot].bytes);
            CHECK(release(held[slot].k, stream, held[slot].allocation));
            held[slot].bytes = 0;
            continue;
        }
        kind k = kinds[next_random(&random) % kind_count];
        size_t bytes = (size_t)(1 + next_random(&random) % MAX_STEPS) * STEP_BYTES;
        CUresult code = allocate(k, bytes, stream, &held[slot].allocation);
        if (code == CUDA_SUCCESS) {
            held[slot].k = k;
            held[slot].bytes = bytes;
            size_t now = atomic_fetch_add(&held_bytes, bytes) + bytes, most = atomic_load(&most_bytes);
            while (now > most && !atomic_compare_exchange_weak(&most_bytes, &most, now)) {
            }
            atomic_fetch_add(&successes, 1);
        } else if (code == CUDA_ERROR_OUT_OF_MEMORY) {
            atomic_fetch_add(&refusals, 1);
        } else {
            fprintf(stderr, "%s of %zu bytes returned %d\n", kind_names[k], bytes, code);
            atomic_fetch_add(&other_errors, 1);
        }
    }
    for (int slot = 0; slot < HELD_PER_THREAD; slot++) {
        if (!held[slot].bytes) continue;
        /* Other threads may still allocate and count. */
        atomic_fetch_sub(&held_bytes, held[slot].bytes);
        CHECK(release(held[slot].k, stream, held[slot].allocation));
    }
    CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuStreamSynchronize_ptsz)(NULL));
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 3 + KINDS) {
        fprintf(stderr, "usage: race THREADS SECONDS [KIND...]\n");
        return 2;
    }
    kind_count = argc > 3 ? argc - 3 : KINDS;
    for (unsigned i = 0; i < kind_count; i++)
        kinds[i] = argc > 3 ? kind_of(argv[3 + i]) : (kind)i;
    int count = atoi(argv[1]);
    double seconds = atof(argv[2]);
    context = open_context();
    pthread_t threads[count];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, worker, (void *)(size_t)(i + 1));
    struct timespec duration = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&duration, NULL);
    atomic_store(&stop, 1);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    CHECK(cu(cuCtxSynchronize)());
    CUmemoryPool pool;
    /* The calls may fail, because a test injects faults. */
    if (!cu(cuDeviceGetDefaultMemPool)(&pool, 0)) cu(cuMemPoolTrimTo)(pool, 0);
    printf("{\"successes\":%zu,\"refusals\":%zu,\"other_errors\":%zu,\"most_bytes\":%zu}\n", atomic_load(&successes),
           atomic_load(&refusals), atomic_load(&other_errors), atomic_load(&most_bytes));
    wait_for_end_of_input();
    return 0;
}
