/* replays [COMMANDS]: captures and launches graphs by the commands of its input, while other
 * threads launch all the time. Answers each line with one JSON object: the command's number, the
 * failed captures, and how many graphs did not contain exactly the captured kernels. With COMMANDS
 * it carries out these lines instead of its input, and no thread makes calls for events.
 *
 *   capture N   makes N captures in each of the three modes and keeps the last graph
 *   replay N    launches that graph N times and waits for each launch
 *   both N      makes N captures in each mode and launches each graph at once
 *   stop        ends the other threads
 *
 * Each answer also has the other threads' launches and failed calls. */
#include "driver.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { KERNELS = 50, MODES = 3, THREADS = 3, CUDA_ERROR_NOT_READY = 600 };

static CUcontext context;
static CUfunction kernel, quick;
static atomic_int stop;
static atomic_long launches, failures;

/* Launches on a stream of its own, which is allowed during any capture. */
static void *launch_eagerly(void *unused) {
    (void)unused;
    CHECK(cu(cuCtxSetCurrent)(context));
    CUstream stream = new_stream();
    while (!atomic_load(&stop)) {
        struct timespec pause = {0, 100 * 1000};
        if (launch_on(quick, stream)) atomic_fetch_add(&failures, 1);
        atomic_fetch_add(&launches, 1);
        nanosleep(&pause, NULL);
    }
    CHECK(cu(cuStreamSynchronize)(stream));
    return NULL;
}

/* Launches, and queries an event after each launch. */
static void *launch_and_look(void *unused) {
    CUevent event;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)unused;
    CHECK(cu(cuCtxSetCurrent)(context));
    /* Otherwise this thread could not query events while another thread captures in the global
     * mode. */
    CHECK(cu(cuThreadExchangeStreamCaptureMode)(&mode));
    CUstream stream = new_stream();
    CHECK(cu(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    while (!atomic_load(&stop)) {
        struct timespec pause = {0, 50 * 1000};
        if (launch_on(kernel, stream)) atomic_fetch_add(&failures, 1);
        atomic_fetch_add(&launches, 1);
        if (cu(cuEventRecord)(event, stream)) atomic_fetch_add(&failures, 1);
        CUresult code;
        while ((code = cu(cuEventQuery)(event)) == CUDA_ERROR_NOT_READY && !atomic_load(&stop))
            nanosleep(&pause, NULL);
        if (code && code != CUDA_ERROR_NOT_READY) atomic_fetch_add(&failures, 1);
    }
    CHECK(cu(cuStreamSynchronize)(stream));
    return NULL;
}

static int failed, wrong;

/* Makes one capture; its graph replaces the last one. */
static void capture(CUstream stream, int mode, CUgraphExec *exec) {
    CUgraph graph = NULL;
    size_t nodes = 0;
    CUresult code = cu(cuStreamBeginCapture_v2)(stream, mode);
    for (int i = 0; i < KERNELS && !code; i++)
        code = launch_on(kernel, stream);
    CUresult end = cu(cuStreamEndCapture)(stream, &graph);
    if (code || end) {
        fprintf(stderr, "captured: %d, ended: %d\n", code, end);
        failed++;
        return;
    }
    CHECK(cu(cuGraphGetNodes)(graph, NULL, &nodes));
    wrong += nodes != KERNELS;
    if (*exec) CHECK(cu(cuGraphExecDestroy)(*exec));
    CHECK(cu(cuGraphInstantiateWithFlags)(exec, graph, 0));
    CHECK(cu(cuGraphDestroy)(graph));
}

static void replay(CUstream stream, CUgraphExec exec) {
    CHECK(cu(cuGraphLaunch)(exec, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
}

int main(int argc, char **argv) {
    char line[64];
    CUgraphExec exec = NULL;
    pthread_t others[THREADS];
    FILE *commands = argc > 1 ? fmemopen(argv[1], strlen(argv[1]), "r") : stdin;
    context = open_context();
    kernel = load_kernel("busy_200us");
    quick = load_kernel("quick");
    CUstream stream = new_stream();
    for (int i = 0; i < THREADS; i++)
        pthread_create(&others[i], NULL, i == 0 && argc == 1 ? launch_and_look : launch_eagerly, NULL);
    for (int number = 1; fgets(line, sizeof line, commands); number++) {
        char order[16] = "";
        int count = 0;
        sscanf(line, "%15s %d", order, &count);
        if (!strcmp(order, "replay"))
            for (int i = 0; i < count; i++)
                replay(stream, exec);
        else if (!strcmp(order, "capture") || !strcmp(order, "both"))
            for (int i = 0; i < MODES * count; i++) {
                capture(stream, i % MODES, &exec);
                if (*order == 'b' && exec) replay(stream, exec);
            }
        else if (!strcmp(order, "stop")) {
            atomic_store(&stop, 1);
            for (int i = 0; i < THREADS; i++)
                pthread_join(others[i], NULL);
        }
        printf("{\"order\":%d,\"failed\":%d,\"wrong_nodes\":%d,\"launches\":%ld,\"other_failures\":%ld}\n", number, failed, wrong,
               atomic_load(&launches), atomic_load(&failures));
        fflush(stdout);
    }
    return 0;
}
