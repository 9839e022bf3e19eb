/* cancelled: launches from threads that have a pending cancellation, at once and after a pause. A
 * thread with a pending cancellation ends at its next cancellation point. Prints how far each
 * thread came. */
#define _DEFAULT_SOURCE
#include "driver.h"
#include <pthread.h>
#include <unistd.h>

enum { WAITS = 2 };

static CUcontext context;
static CUfunction kernel;
static CUstream stream;
static CUevent event;
static int reached;

static void *worker(void *none) {
    (void)none;
    CHECK(cu(cuCtxSetCurrent)(context));
    pthread_cancel(pthread_self());
    CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    reached = 1;
    CHECK(cu(cuEventRecord)(event, stream));
    CHECK(cu(cuLaunchKernel)(kernel, 2, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    reached = 2;
    pthread_testcancel();
    reached = 3;
    return NULL;
}

int main(void) {
    // Longer than the time after which the meter thread sleeps until a launch wakes it.
    static const unsigned waits_us[WAITS] = {0, 2500000};
    context = open_context();
    kernel = load_kernel("quick");
    stream = new_stream();
    CHECK(cu(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    printf("{\"threads\":[");
    for (int i = 0; i < WAITS; i++) {
        pthread_t thread;
        void *result;
        usleep(waits_us[i]);
        reached = 0;
        pthread_create(&thread, NULL, worker, NULL);
        pthread_join(thread, &result);
        printf("%s{\"reached\":%d,\"is_cancelled\":%s}", i ? "," : "", reached, result == PTHREAD_CANCELED ? "true" : "false");
        CHECK(cu(cuCtxSynchronize)());
    }
    printf("]}\n");
    wait_for_end_of_input();
    return 0;
}
