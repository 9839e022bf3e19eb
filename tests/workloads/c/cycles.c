/* cycles ROUNDS: creates, uses and ends one object of each kind, over and over. Prints as JSON how
 * many KiB of the process stay behind for each kind.
 *
 * The number is the least of several runs of ROUNDS rounds. Some objects are created only once, but
 * at any time at which more work than before is in flight. */
#define _GNU_SOURCE
#include "driver.h"
#include <pthread.h>
#include <string.h>

/* After WARM_UP rounds no object that is created only once appears any more. */
enum { WARM_UP = 300, TIMES = 4 };

static CUstream stream;
static CUfunction quick;

static void one_context(void) {
    CUcontext context;
    CUdeviceptr at;
    CHECK(cu(cuCtxCreate_v2)(&context, 0, 0));
    CUstream own = new_stream();
    CHECK(cu(cuMemAlloc_v2)(&at, 1 << 20));
    CUfunction kernel = load_kernel("quick");
    CHECK(launch_on(kernel, NULL));
    CHECK(launch_on(kernel, own));
    CHECK(cu(cuCtxSynchronize)());
    CHECK(cu(cuCtxDestroy_v2)(context));
}

static void one_stream(void) {
    CUstream own = new_stream();
    CHECK(launch_on(quick, own));
    CHECK(cu(cuStreamSynchronize)(own));
    CHECK(cu(cuStreamDestroy_v2)(own));
}

static void *launch_here(void *context) {
    CHECK(cu(cuCtxSetCurrent)(context));
    CHECK(launch_on(quick, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    return NULL;
}

static CUcontext kept;

static void one_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, launch_here, kept)) exit(1);
    pthread_join(thread, NULL);
}

static void one_graph(void) {
    CUgraph graph = capture_launches(quick, stream, CU_STREAM_CAPTURE_MODE_RELAXED, 1);
    CUgraphExec exec;
    CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    CHECK(cu(cuGraphLaunch)(exec, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuGraphExecDestroy)(exec));
    CHECK(cu(cuGraphDestroy)(graph));
}

static void one_module(void) {
    CUmodule module = load_module("quick");
    CUfunction kernel;
    CHECK(cu(cuModuleGetFunction)(&kernel, module, "quick"));
    CHECK(launch_on(kernel, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuModuleUnload)(module));
}

static void one_pool(void) {
    CUmemPoolProps props;
    CUmemoryPool pool;
    CUdeviceptr at;
    memset(&props, 0, sizeof props);
    props.allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CHECK(cu(cuMemPoolCreate)(&pool, &props));
    CHECK(cu(cuMemAllocFromPoolAsync)(&at, 1 << 20, pool, stream));
    CHECK(cu(cuMemFreeAsync)(at, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuMemPoolDestroy)(pool));
}

static void one_allocation(void) {
    CUdeviceptr at, managed;
    CHECK(cu(cuMemAlloc_v2)(&at, 1 << 20));
    CHECK(cu(cuMemAllocManaged)(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    CHECK(cu(cuMemFree_v2)(at));
    CHECK(cu(cuMemFree_v2)(managed));
}

static long resident_kib(void) {
    char line[128];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "VmRSS: %ld kB", &kib);
    if (status) fclose(status);
    return kib;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*one)(void);
    } kinds[] = {{"context", one_context}, {"stream", one_stream}, {"thread", one_thread},       {"graph", one_graph},
                 {"module", one_module},   {"pool", one_pool},     {"allocation", one_allocation}};
    long rounds = argc == 2 ? atol(argv[1]) : 0;
    usage(rounds > 0, "cycles ROUNDS");
    load_driver();
    kept = open_context();
    quick = load_kernel("quick");
    stream = new_stream();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        CHECK(cu(cuCtxSetCurrent)(kept));
        for (int round = 0; round < WARM_UP; round++) kinds[i].one();
        long least_kib = -1;
        for (int time = 0; time < TIMES; time++) {
            long before_kib = resident_kib();
            for (long round = 0; round < rounds; round++) kinds[i].one();
            long left_kib = resident_kib() - before_kib;
            if (time == 0 || left_kib < least_kib) least_kib = left_kib;
        }
        printf("%s\"%s\": %ld", i ? ", " : "{", kinds[i].name, least_kib);
    }
    printf("}\n");
    return 0;
}
