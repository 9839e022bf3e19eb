/* graphs MS MIB: for MS milliseconds, threads launch graphs that allocate MIB mebibytes, allocate
 * as much by themselves, free and trim. Prints how often each thread had its memory. */
#include "driver.h"
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { MIB = 1 << 20, THREADS = 5 };

static CUcontext context;

static CUgraphNode allocate(CUgraph graph, size_t mib, CUdeviceptr *at) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .pool = {.allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .bytes = mib * MIB,
    };
    CUgraphNode node;
    CHECK(cu(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &params));
    *at = params.address;
    return node;
}

static atomic_int stops;
static atomic_ulong done[THREADS];
static size_t race_mib;

/* The loop of each thread. */
static void *racer(void *argument) {
    int which = (int)(size_t)argument;
    CHECK(cu(cuCtxSetCurrent)(context));
    CUstream stream = new_stream();
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at, own;
    CHECK(cu(cuGraphCreate)(&graph, 0));
    CUgraphNode node = allocate(graph, race_mib, &at), freeing;
    if (which == 1)
        CHECK(cu(cuGraphAddMemFreeNode)(&freeing, graph, &node, 1, at));
    CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, which == 0 ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0));
    while (!stops) {
        CUresult code;
        switch (which) {
        case 0:
        case 1:
            code = cu(cuGraphLaunch)(exec, stream);
            break;
        case 2:
            if ((code = cu(cuGraphLaunch)(exec, stream)) == CUDA_SUCCESS)
                CHECK(cu(cuMemFreeAsync)(at, stream));
            break;
        case 3:
            if ((code = cu(cuMemAlloc_v2)(&own, 2 * race_mib * MIB)) == CUDA_SUCCESS)
                CHECK(cu(cuMemFree_v2)(own));
            break;
        default:
            if ((code = cu(cuMemAlloc_v2)(&own, race_mib * MIB)) == CUDA_SUCCESS)
                CHECK(cu(cuMemFree_v2)(own));
            CHECK(cu(cuDeviceGraphMemTrim)(0));
        }
        if (code == CUDA_SUCCESS)
            done[which]++;
        else if (code != CUDA_ERROR_OUT_OF_MEMORY) {
            fprintf(stderr, "thread %d: %d\n", which, code);
            exit(1);
        }
        /* Frees the memory now and then, so that the waiting threads get their turn. */
        if (which == 0 && code == CUDA_SUCCESS && done[0] % 64 == 0) {
            CHECK(cu(cuMemFreeAsync)(at, stream));
            CHECK(cu(cuStreamSynchronize)(stream));
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    usage(argc == 3, "graphs MS MIB");
    pthread_t threads[THREADS];
    const size_t ms = strtoull(argv[1], NULL, 10);
    const struct timespec moment = {ms / 1000, ms % 1000 * MS_NS};
    race_mib = strtoull(argv[2], NULL, 10);
    context = open_context();
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, racer, (void *)i);
    nanosleep(&moment, NULL);
    stops = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        printf("%lu\n", done[i]);
    return 0;
}
