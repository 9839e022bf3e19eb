/* Launches kernels at a pace of its own, by a pattern that the command line spells, so that a meter can be compared with what the simulated GPU
 * recorded. Runs until it is killed.
 *
 * pace [--threads N] [--streams N] [--default legacy|per-thread] STEP…
 *   Every thread goes through the steps again and again, each thread's launches in turn on its streams (N non-blocking ones, one by default;
 *   --default: the default stream instead). A step:
 *   NAME           launches the kernel NAME          NAMExK      launches it K times
 *   graph:NAMExK   launches a graph of K of them     wait:US     lets US microseconds pass on the host, spinning
 *   sync           waits for everything              to:BYTES    copies so much to the device    from:BYTES   … back, waiting
 *   host:US        a host function of US microseconds in the stream
 *   after:N        makes the stream wait for what was launched on stream N */
#include "driver.h"
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { MAX_STREAMS = 64, MAX_STEPS = 64, COPY_BYTES_MAX = 64 << 20 };

static CUcontext context;
static int step_count;
static char **steps;
static long streams = 1;
static const char *default_stream = "";

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void spin_us(long us) {
    for (long long end = now_ns() + us * 1000LL; now_ns() < end;) {
    }
}

static void host_function(void *us) { spin_us((long)us); }

typedef struct {
    enum { KERNEL, GRAPH, WAIT, SYNC, TO, FROM, HOST, AFTER } what;
    CUfunction kernel;
    CUgraphExec graph;
    long number;
} step;

/* Splits NAMExK. */
static long split_times(char *name) {
    char *times = strrchr(name, 'x');
    if (!times || times == name || !times[1] || strspn(times + 1, "0123456789") != strlen(times + 1)) return 1;
    *times = 0;
    return atol(times + 1);
}

static step parse(const char *text) {
    char name[128];
    const char *colon = strchr(text, ':');
    long number = colon ? atol(colon + 1) : 0;
    step s = {KERNEL, NULL, NULL, number};
    if (!strcmp(text, "sync")) s.what = SYNC;
    else if (!strncmp(text, "wait:", 5)) s.what = WAIT;
    else if (!strncmp(text, "to:", 3)) s.what = TO;
    else if (!strncmp(text, "from:", 5)) s.what = FROM;
    else if (!strncmp(text, "host:", 5)) s.what = HOST;
    else if (!strncmp(text, "after:", 6)) s.what = AFTER;
    else {
        int is_graph = !strncmp(text, "graph:", 6);
        snprintf(name, sizeof name, "%s", is_graph ? colon + 1 : text);
        s.number = split_times(name);
        s.kernel = load_kernel(name);
        if (is_graph) {
            CUgraph graph;
            CUstream capturing;
            s.what = GRAPH;
            CHECK(cu(cuStreamCreate)(&capturing, CU_STREAM_NON_BLOCKING));
            CHECK(cu(cuStreamBeginCapture_v2)(capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
            for (long i = 0; i < s.number; i++)
                CHECK(cu(cuLaunchKernel)(s.kernel, 1, 1, 1, 32, 1, 1, 0, capturing, NULL, NULL));
            CHECK(cu(cuStreamEndCapture)(capturing, &graph));
            CHECK(cu(cuGraphInstantiateWithFlags)(&s.graph, graph, 0));
        }
    }
    return s;
}

static void *run(void *unused) {
    (void)unused;
    step program[MAX_STEPS];
    CUstream on[MAX_STREAMS] = {0};
    CUevent reached[MAX_STREAMS];
    CUdeviceptr device;
    void *host;
    int per_thread = !strcmp(default_stream, "per-thread");
    CHECK(cu(cuCtxSetCurrent)(context));
    CHECK(cu(cuMemAlloc_v2)(&device, COPY_BYTES_MAX));
    CHECK(cu(cuMemHostAlloc)(&host, COPY_BYTES_MAX, 0));
    for (int i = 0; i < step_count; i++)
        program[i] = parse(steps[i]);
    for (long i = 0; i < streams; i++) {
        if (!*default_stream) CHECK(cu(cuStreamCreate)(&on[i], CU_STREAM_NON_BLOCKING));
        CHECK(cu(cuEventCreate)(&reached[i], CU_EVENT_DISABLE_TIMING));
    }
    printf("ready\n");
    fflush(stdout);
    for (unsigned long launches = 0;;) {
        for (int i = 0; i < step_count; i++) {
            step s = program[i];
            CUstream stream = on[launches % streams];
            switch (s.what) {
            case KERNEL:
                for (long k = 0; k < s.number; k++) {
                    stream = on[launches++ % streams];
                    if (per_thread) CHECK(cu(cuLaunchKernel_ptsz)(s.kernel, 1, 1, 1, 32, 1, 1, 0, 0, NULL, NULL));
                    else CHECK(cu(cuLaunchKernel)(s.kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
                }
                break;
            case GRAPH:
                launches++;
                if (per_thread) CHECK(cu(cuGraphLaunch_ptsz)(s.graph, 0));
                else CHECK(cu(cuGraphLaunch)(s.graph, stream));
                break;
            case WAIT: spin_us(s.number); break;
            case SYNC: CHECK(cu(cuCtxSynchronize)()); break;
            case TO: CHECK(cu(cuMemcpyHtoDAsync_v2)(device, host, s.number, stream)); break;
            case FROM: CHECK(cu(cuMemcpyDtoH_v2)(host, device, s.number)); break;
            case HOST: CHECK(cu(cuLaunchHostFunc)(stream, host_function, (void *)s.number)); break;
            case AFTER:
                CHECK(cu(cuEventRecord)(reached[s.number], on[s.number]));
                CHECK(cu(cuStreamWaitEvent)(stream, reached[s.number], 0));
                break;
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    long threads = 1;
    int i = 1;
    for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
        if (!strcmp(argv[i], "--threads")) threads = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--streams")) streams = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--default")) default_stream = argv[i + 1];
        else break;
    }
    steps = argv + i;
    step_count = argc - i;
    if (threads < 1 || streams < 1 || streams > MAX_STREAMS || step_count < 1 || step_count > MAX_STEPS) {
        fprintf(stderr, "pace: at least one thread, stream and step; at most %d streams and %d steps\n", MAX_STREAMS, MAX_STEPS);
        return 2;
    }
    context = open_context();
    pthread_t thread;
    for (long t = 1; t < threads; t++)
        pthread_create(&thread, NULL, run, NULL);
    run(NULL);
    return 0;
}
