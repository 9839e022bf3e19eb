/* storm: waves of short-lived threads that launch and end. Each thread has a stream of its own and
 * its per-thread default stream; some end with work in flight. Prints the number of launches as one
 * JSON line. */
#include "driver.h"
#include <pthread.h>
#include <stdatomic.h>

enum { WAVES = 20, THREADS = 32, LAUNCHES = 50 };

static CUcontext context;
static CUfunction kernel;
static atomic_int launches;

static void *worker(void *number) {
    CHECK(cu(cuCtxSetCurrent)(context));
    CUstream stream = new_stream();
    for (int i = 0; i < LAUNCHES; i++) {
        CHECK(launch_on(kernel, stream));
        CHECK(cu(cuLaunchKernel_ptsz)(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        atomic_fetch_add(&launches, 2);
    }
    if ((size_t)number % 2) CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuStreamDestroy_v2)(stream));
    return NULL;
}

int main(void) {
    context = open_context();
    kernel = load_kernel("quick");
    for (int wave = 0; wave < WAVES; wave++) {
        pthread_t threads[THREADS];
        for (size_t i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, worker, (void *)i);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    }
    CHECK(cu(cuCtxSynchronize)());
    printf("{\"kernel_launches\":%d}\n", atomic_load(&launches));
    wait_for_end_of_input();
    return 0;
}
