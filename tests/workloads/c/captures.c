/* captures: captures graphs in each of the three modes on one thread while other threads launch on
 * streams of their own. Prints one JSON line for each mode: the failed captures with the last error
 * code, and how many graphs did not contain exactly the captured kernels. */
#include "driver.h"
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { CAPTURES = 50, KERNELS = 200, OTHERS = 3 };

static CUcontext context;
static CUfunction kernel;
static atomic_int stop;
static atomic_int other_failures;

static void *launcher(void *unused) {
    (void)unused;
    CHECK(cu(cuCtxSetCurrent)(context));
    CUstream stream = new_stream();
    while (!atomic_load(&stop)) {
        /* Launching on another stream is allowed during any capture. */
        for (int i = 0; i < 20; i++)
            if (launch_on(kernel, stream)) atomic_fetch_add(&other_failures, 1);
        struct timespec pause = {0, 100 * 1000};
        nanosleep(&pause, NULL);
    }
    CHECK(cu(cuStreamSynchronize)(stream));
    return NULL;
}

int main(void) {
    context = open_context();
    kernel = load_kernel("quick");
    pthread_t others[OTHERS];
    for (int i = 0; i < OTHERS; i++)
        pthread_create(&others[i], NULL, launcher, NULL);
    static const char *const names[] = {"global", "thread_local", "relaxed"};
    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
        int failed = 0, wrong = 0, last_code = 0;
        CUstream stream = new_stream();
        for (int i = 0; i < CAPTURES; i++) {
            CUgraph graph = NULL;
            CUgraphExec exec;
            size_t nodes = 0;
            /* Work in flight on the stream that is captured next. */
            for (int j = 0; j < 10; j++)
                CHECK(launch_on(kernel, stream));
            CUresult code = cu(cuStreamBeginCapture_v2)(stream, mode);
            for (int j = 0; j < KERNELS && !code; j++)
                code = launch_on(kernel, stream);
            CUresult end = cu(cuStreamEndCapture)(stream, &graph);
            if (code || end) {
                failed++;
                last_code = code ? code : end;
                continue;
            }
            CHECK(cu(cuGraphGetNodes)(graph, NULL, &nodes));
            wrong += nodes != KERNELS;
            CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0));
            CHECK(cu(cuGraphLaunch)(exec, stream));
            CHECK(cu(cuStreamSynchronize)(stream));
            CHECK(cu(cuGraphExecDestroy)(exec));
            CHECK(cu(cuGraphDestroy)(graph));
        }
        CHECK(cu(cuStreamDestroy_v2)(stream));
        printf("{\"mode\":\"%s\",\"captures\":%d,\"failed\":%d,\"code\":%d,\"wrong_nodes\":%d,\"other_failures\":%d}\n",
               names[mode], CAPTURES, failed, last_code, wrong, atomic_load(&other_failures));
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < OTHERS; i++)
        pthread_join(others[i], NULL);
    return 0;
}
