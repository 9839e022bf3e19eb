/* pace: launches kernels at a pace and in a pattern that the command line gives. Tests compare a
 * meter with the record of the simulated GPU. Runs until it is killed.
 *
 *   pace [--threads N] [--streams N] [--default legacy|per-thread] [--priorities N] [--gpus N]
 *        [--contexts N] STEP…
 *
 * Every thread goes through the steps again and again, and launches by turns on its N non-blocking
 * streams (one by default). The streams are by turns in N contexts (--contexts, one by default),
 * and the contexts by turns on N GPUs (--gpus). --default uses the default stream instead.
 * --priorities gives the streams N priorities by turns, from the least urgent on.
 *
 * A step:
 *
 *   NAME          launches the kernel NAME
 *   NAMExK        launches the kernel K times
 *   graph:NAMExK  launches a graph of K such kernels
 *   while:NAMExK  launches a graph with the K kernels in the body of a WHILE condition; the
 *                 simulated GPU decides the number of rounds
 *   again:NAMExK  launches a graph of K such kernels that launches itself again on the device; the
 *                 simulated GPU decides the number of rounds
 *   wait:US       spins on the host for US microseconds
 *   sync          waits for all work
 *   to:BYTES      copies BYTES to the device
 *   from:BYTES    copies BYTES back and waits
 *   set:BYTES     sets BYTES of the device's memory
 *   within:BYTES  copies BYTES within the device's memory, at most half of what to: may copy
 *   host:US       queues a host function of US microseconds in the stream
 *   after:N       makes the stream wait for the work launched on stream N
 *   all:N         makes every stream of the context wait for the work launched on stream N
 *   blocks:N      gives N blocks to the kernels that the thread launches after it
 *   sleep:US      sleeps on the host for US microseconds
 *
 * From a signal SIGUSR1 on, each kernel has one more block, so the pattern has other kernels. */
#include "driver.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STREAMS = 64, MAX_STEPS = 64, MAX_CONTEXTS = 8, COPY_BYTES_MAX = 64 << 20 };

static CUcontext contexts[MAX_CONTEXTS];
static long context_count = 1, gpus = 1, priorities = 1;
static int step_count;
static char **steps;
static long streams = 1;
static const char *default_stream = "";

static void spin_us(long us) {
    for (long long end = now_ns() + us * 1000LL; now_ns() < end;) {
    }
}

static void host_function(void *us) { spin_us((long)us); }

static volatile sig_atomic_t more_blocks;

static void add_block(int signal) {
    (void)signal;
    more_blocks = 1;
}

typedef struct {
    enum { KERNEL, GRAPH, WAIT, SYNC, TO, FROM, SET, WITHIN, HOST, AFTER, ALL, BLOCKS, SLEEP } what;
    /* By context. */
    CUfunction kernel[MAX_CONTEXTS];
    CUgraphExec graph[MAX_CONTEXTS];
    long number;
} step;

/* Returns the number of a stream's context. */
static long context_of(long stream) { return stream % context_count; }

static void enter(long context) {
    if (context_count > 1) CHECK(cu(cuCtxSetCurrent)(contexts[context]));
}

/* Splits NAMExK: cuts the name and returns K. */
static long split_times(char *name) {
    char *times = strrchr(name, 'x');
    if (!times || times == name || !times[1] || strspn(times + 1, "0123456789") != strlen(times + 1)) return 1;
    *times = 0;
    return atol(times + 1);
}

/* Returns a graph that repeats another one as long as its condition holds. */
static CUgraph repeated(CUgraph body, CUcontext context) {
    CUgraph graph;
    CUgraphNode node;
    unsigned long long handle;
    CHECK(cu(cuGraphCreate)(&graph, 0));
    CHECK(cu(cuGraphConditionalHandleCreate)(&handle, graph, context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams loop = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                              .conditional = {handle, CU_GRAPH_COND_TYPE_WHILE, 1, NULL, context}};
    CHECK(cu(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0, &loop));
    CUgraphNodeParams inner = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = {body, 0}};
    CHECK(cu(cuGraphAddNode_v2)(&node, loop.conditional.bodies[0], NULL, NULL, 0, &inner));
    return graph;
}

static step parse(const char *text) {
    char name[128];
    const char *colon = strchr(text, ':');
    long number = colon ? atol(colon + 1) : 0;
    step s = {KERNEL, {NULL}, {NULL}, number};
    if (!strcmp(text, "sync")) s.what = SYNC;
    else if (!strncmp(text, "wait:", 5)) s.what = WAIT;
    else if (!strncmp(text, "to:", 3)) s.what = TO;
    else if (!strncmp(text, "from:", 5)) s.what = FROM;
    else if (!strncmp(text, "set:", 4)) s.what = SET;
    else if (!strncmp(text, "within:", 7)) s.what = WITHIN;
    else if (!strncmp(text, "host:", 5)) s.what = HOST;
    else if (!strncmp(text, "after:", 6)) s.what = AFTER;
    else if (!strncmp(text, "all:", 4)) s.what = ALL;
    else if (!strncmp(text, "blocks:", 7)) s.what = BLOCKS;
    else if (!strncmp(text, "sleep:", 6)) s.what = SLEEP;
    else {
        int repeats = !strncmp(text, "while:", 6), again = !strncmp(text, "again:", 6);
        int is_graph = repeats || again || !strncmp(text, "graph:", 6);
        snprintf(name, sizeof name, "%s", is_graph ? colon + 1 : text);
        s.number = split_times(name);
        if (is_graph) s.what = GRAPH;
        for (long c = 0; c < context_count; c++) {
            CUgraph graph;
            enter(c);
            s.kernel[c] = load_kernel(name);
            if (!is_graph) continue;
            graph =
                capture_launches(s.kernel[c], new_stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, s.number);
            if (repeats) graph = repeated(graph, contexts[c]);
            CHECK(cu(cuGraphInstantiateWithFlags)(
                &s.graph[c], graph, again ? CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH : 0));
        }
    }
    return s;
}

static void *run(void *unused) {
    (void)unused;
    step program[MAX_STEPS];
    CUstream on[MAX_STREAMS] = {0};
    CUevent reached[MAX_STREAMS];
    CUdeviceptr device[MAX_CONTEXTS];
    void *host;
    int per_thread = !strcmp(default_stream, "per-thread"), least, greatest;
    long blocks = 1;
    for (long c = context_count; c-- > 0;) {
        CHECK(cu(cuCtxSetCurrent)(contexts[c]));
        CHECK(cu(cuMemAlloc_v2)(&device[c], COPY_BYTES_MAX));
    }
    CHECK(cu(cuMemHostAlloc)(&host, COPY_BYTES_MAX, 0));
    CHECK(cu(cuCtxGetStreamPriorityRange)(&least, &greatest));
    for (int i = 0; i < step_count; i++)
        program[i] = parse(steps[i]);
    for (long i = 0; i < streams; i++) {
        enter(context_of(i));
        if (!*default_stream && priorities == 1) CHECK(cu(cuStreamCreate)(&on[i], CU_STREAM_NON_BLOCKING));
        else if (!*default_stream)
            /* The least urgent priority has the largest number. */
            CHECK(cu(cuStreamCreateWithPriority)(&on[i], CU_STREAM_NON_BLOCKING, least - i % priorities));
        CHECK(cu(cuEventCreate)(&reached[i], CU_EVENT_DISABLE_TIMING));
    }
    say("ready");
    for (unsigned long launches = 0;;) {
        for (int i = 0; i < step_count; i++) {
            const step *s = &program[i];
            CUstream stream = on[launches % streams];
            long c = context_of(launches % streams);
            switch (s->what) {
            case KERNEL:
                for (long k = 0; k < s->number; k++) {
                    c = context_of(launches % streams);
                    stream = on[launches++ % streams];
                    enter(c);
                    unsigned grid = blocks + more_blocks;
                    if (per_thread)
                        CHECK(cu(cuLaunchKernel_ptsz)(s->kernel[c], grid, 1, 1, 32, 1, 1, 0, 0, NULL, NULL));
                    else CHECK(cu(cuLaunchKernel)(s->kernel[c], grid, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
                }
                break;
            case GRAPH:
                launches++;
                enter(c);
                if (per_thread) CHECK(cu(cuGraphLaunch_ptsz)(s->graph[c], 0));
                else CHECK(cu(cuGraphLaunch)(s->graph[c], stream));
                break;
            case WAIT: spin_us(s->number); break;
            case BLOCKS: blocks = s->number; break;
            case SLEEP: usleep(s->number); break;
            case SYNC:
                for (long each = 0; each < context_count; each++) {
                    enter(each);
                    CHECK(cu(cuCtxSynchronize)());
                }
                break;
            case TO:
                enter(c);
                CHECK(cu(cuMemcpyHtoDAsync_v2)(device[c], host, s->number, stream));
                break;
            case FROM:
                enter(c);
                CHECK(cu(cuMemcpyDtoH_v2)(host, device[c], s->number));
                break;
            case SET:
                enter(c);
                CHECK(cu(cuMemsetD8Async)(device[c], 0, s->number, stream));
                break;
            case WITHIN:
                enter(c);
                CHECK(cu(cuMemcpyDtoDAsync_v2)(device[c], device[c] + COPY_BYTES_MAX / 2, s->number, stream));
                break;
            case HOST:
                enter(c);
                CHECK(cu(cuLaunchHostFunc)(stream, host_function, (void *)s->number));
                break;
            case AFTER:
                enter(context_of(s->number));
                CHECK(cu(cuEventRecord)(reached[s->number], on[s->number]));
                enter(c);
                CHECK(cu(cuStreamWaitEvent)(stream, reached[s->number], 0));
                break;
            case ALL:
                enter(context_of(s->number));
                CHECK(cu(cuEventRecord)(reached[s->number], on[s->number]));
                CHECK(cu(cuCtxWaitEvent)(contexts[c], reached[s->number]));
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
        else if (!strcmp(argv[i], "--priorities")) priorities = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--gpus")) gpus = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--contexts")) context_count = atol(argv[i + 1]);
        else break;
    }
    steps = argv + i;
    step_count = argc - i;
    if (threads < 1 || streams < 1 || streams > MAX_STREAMS || step_count < 1 || step_count > MAX_STEPS || gpus < 1 ||
        context_count < 1 || context_count > MAX_CONTEXTS || priorities < 1) {
        fprintf(stderr, "pace: at least one thread, stream, step, priority, context and GPU; at most %d streams, %d steps and %d contexts\n",
                MAX_STREAMS, MAX_STEPS, MAX_CONTEXTS);
        return 2;
    }
    signal(SIGUSR1, add_block);
    contexts[0] = open_context();
    for (long c = 1; c < context_count; c++)
        CHECK(cu(cuCtxCreate_v2)(&contexts[c], CU_CTX_SCHED_AUTO, c % gpus));
    pthread_t thread;
    for (long t = 1; t < threads; t++)
        pthread_create(&thread, NULL, run, NULL);
    run(NULL);
    return 0;
}
