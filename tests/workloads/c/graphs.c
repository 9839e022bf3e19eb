/* graphs WHAT COUNT MIB: launches graphs that allocate, and prints the result of each call. Sizes
 * are in MiB. */
#include "driver.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { MIB = 1 << 20, THREADS = 5 };

static CUcontext context;

static CUgraph new_graph(void) {
    CUgraph graph;
    CHECK(cu(cuGraphCreate)(&graph, 0));
    return graph;
}

/* Adds an allocation node, behind `after` unless it is NULL. */
static CUgraphNode allocate(CUgraph graph, CUgraphNode after, size_t mib, CUdeviceptr *at) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .pool = {.allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .bytes = mib * MIB,
    };
    CUgraphNode node;
    CHECK(cu(cuGraphAddMemAllocNode)(&node, graph, after ? &after : NULL, after ? 1 : 0, &params));
    *at = params.address;
    return node;
}

static CUgraphNode release(CUgraph graph, CUgraphNode after, CUdeviceptr at) {
    CUgraphNode node;
    CHECK(cu(cuGraphAddMemFreeNode)(&node, graph, &after, 1, at));
    return node;
}

/* Returns a graph into which `inner` is moved as a child. */
static CUgraph wrapped(CUgraph inner) {
    CUgraph outer = new_graph();
    CUgraphNode node;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = {inner, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
    CHECK(cu(cuGraphAddNode_v2)(&node, outer, NULL, NULL, 0, &params));
    return outer;
}

static CUgraphExec executable(CUgraph graph, unsigned flags) {
    CUgraphExec exec;
    CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, flags));
    return exec;
}

static void launch(CUgraphExec exec, CUstream stream) {
    printf("%d\n", cu(cuGraphLaunch)(exec, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
}

/* The functions below are the program's parts. `count` and `mib` are the program's arguments. */

static void nested(size_t count, size_t mib) {
    CUgraph graph = new_graph();
    CUdeviceptr at;
    allocate(graph, NULL, mib, &at);
    for (size_t i = 0; i < count; i++)
        graph = wrapped(graph);
    launch(executable(graph, 0), new_stream());
}

/* The graph frees each allocation before the next one. */
static void chain(size_t count, size_t mib) {
    CUgraph graph = new_graph();
    CUgraphNode last = NULL;
    for (size_t i = 0; i < count; i++) {
        CUdeviceptr at;
        last = allocate(graph, last, mib, &at);
        last = release(graph, last, at);
    }
    CUgraphExec exec = executable(graph, 0);
    CUstream stream = new_stream();
    launch(exec, stream);
    launch(exec, stream);
}

static void launches(size_t count, size_t mib, unsigned flags) {
    CUgraph graph = new_graph();
    CUdeviceptr at, over;
    allocate(graph, NULL, mib, &at);
    CUgraphExec exec = executable(graph, flags);
    CUstream stream = new_stream();
    for (size_t i = 0; i < count; i++)
        launch(exec, stream);
    /* The memory counts while it is allocated, and no longer once it has been freed and reused. */
    printf("%d\n", cu(cuMemAlloc_v2)(&over, mib * MIB));
    CHECK(cu(cuMemFreeAsync)(at, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuMemAlloc_v2)(&over, mib * MIB));
    /* A launch must be able to allocate freed memory again. */
    launch(exec, stream);
    CHECK(cu(cuMemFree_v2)(over));
    launch(exec, stream);
}

/* Two graphs that leave memory allocated run by turns. Another graph frees the memory that one of
 * them left. */
static void turns(size_t count, size_t mib) {
    CUgraph graphs[2] = {new_graph(), new_graph()}, freeing = new_graph();
    CUgraphExec execs[2];
    CUdeviceptr at[2];
    CUgraphNode node;
    for (int i = 0; i < 2; i++) {
        allocate(graphs[i], NULL, mib, &at[i]);
        execs[i] = executable(graphs[i], CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    }
    CHECK(cu(cuGraphAddMemFreeNode)(&node, freeing, NULL, 0, at[0]));
    CUgraphExec frees = executable(freeing, 0);
    CUstream stream = new_stream();
    for (size_t i = 0; i < count; i++)
        launch(execs[i % 2], stream);
    launch(frees, stream);
    CHECK(cu(cuDeviceGraphMemTrim)(0));
    CUdeviceptr other;
    CHECK(cu(cuMemAlloc_v2)(&other, mib * MIB));
    launch(execs[0], stream);
    launch(execs[1], stream);
}

/* A graph that the driver fails to destroy can still be launched. */
static void kept(size_t count, size_t mib) {
    CUgraph graph = new_graph();
    CUdeviceptr at, over;
    CUgraphNode node = allocate(graph, NULL, mib, &at);
    release(graph, node, at);
    CUgraphExec exec = executable(graph, 0);
    CUstream stream = new_stream();
    CHECK(cu(cuMemAlloc_v2)(&over, mib * MIB));
    launch(exec, stream);
    for (size_t i = 0; i < count; i++)
        if (cu(cuGraphExecDestroy)(exec) == CUDA_SUCCESS) exit(1);
    launch(exec, stream);
    CHECK(cu(cuMemFree_v2)(over));
    launch(exec, stream);
    CHECK(cu(cuGraphExecDestroy)(exec));
}

static atomic_int stops;
static atomic_ulong done[THREADS];
static size_t race_mib;

/* The loop of each thread. */
static void *racer(void *argument) {
    int which = (int)(size_t)argument;
    CHECK(cu(cuCtxSetCurrent)(context));
    CUstream stream = new_stream();
    CUgraph graph = new_graph();
    CUdeviceptr at, own;
    CUgraphNode node = allocate(graph, NULL, race_mib, &at);
    if (which == 1)
        release(graph, node, at);
    CUgraphExec exec = executable(graph, which == 0 ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0);
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

static void race(size_t milliseconds, size_t mib) {
    pthread_t threads[THREADS];
    const struct timespec moment = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    race_mib = mib;
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, racer, (void *)i);
    nanosleep(&moment, NULL);
    stops = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        printf("%lu\n", done[i]);
}

int main(int argc, char **argv) {
    usage(argc == 4, "graphs WHAT COUNT MIB");
    size_t count = strtoull(argv[2], NULL, 10), mib = strtoull(argv[3], NULL, 10);
    context = open_context();
    if (!strcmp(argv[1], "nested"))
        nested(count, mib);
    else if (!strcmp(argv[1], "chain"))
        chain(count, mib);
    else if (!strcmp(argv[1], "once"))
        launches(count, mib, 0);
    else if (!strcmp(argv[1], "again"))
        launches(count, mib, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    else if (!strcmp(argv[1], "turns"))
        turns(count, mib);
    else if (!strcmp(argv[1], "kept"))
        kept(count, mib);
    else if (!strcmp(argv[1], "race"))
        race(count, mib);
    else
        return 2;
    return 0;
}
