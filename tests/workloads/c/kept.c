/* kept: allocates memory in ways in which the driver keeps more than the live allocations. Prints
 * `stage NAME` at each stage and goes on when a line comes in. */
#include "driver.h"
#include <string.h>

enum { MIB = 1 << 20, SMALL_BYTES = 512, SMALL = 5000, TALL = 65535 };

static void stage(const char *name) {
    printf("stage %s\n", name);
    fflush(stdout);
    if (getchar() == EOF) exit(0);
}

static CUdeviceptr small[SMALL];

/* Small allocations share blocks. */
static void slabs(void) {
    for (int i = 0; i < SMALL; i++)
        CHECK(cu(cuMemAlloc_v2)(&small[i], SMALL_BYTES));
    stage("small");
    /* One allocation is left in the first block, and one in the last. */
    for (int i = 1; i < SMALL - 1; i++)
        CHECK(cu(cuMemFree_v2)(small[i]));
    stage("few");
    CHECK(cu(cuMemFree_v2)(small[0]));
    CHECK(cu(cuMemFree_v2)(small[SMALL - 1]));
    stage("none");
}

/* Less than a block is left of the limit. One more small allocation fits beside other small ones,
 * and nothing larger. */
static void tight(size_t limit) {
    CUdeviceptr one, rest, another, large;
    CHECK(cu(cuMemAlloc_v2)(&one, SMALL_BYTES));
    CHECK(cu(cuMemAlloc_v2)(&rest, limit - 2 * MIB));
    CHECK(cu(cuMemAlloc_v2)(&another, MIB));
    CHECK(cu(cuMemAlloc_v2)(&small[0], MIB - SMALL_BYTES));
    CUresult code = cu(cuMemAlloc_v2)(&large, SMALL_BYTES);
    printf("full %d\n", code);
    stage("tight");
    CHECK(cu(cuMemFree_v2)(rest));
    CHECK(cu(cuMemFree_v2)(one));
    CHECK(cu(cuMemFree_v2)(another));
    CHECK(cu(cuMemFree_v2)(small[0]));
    stage("loose");
}

/* Each row of an array begins at a multiple of the pitch, however short the row is. */
static void array(void) {
    const CUDA_ARRAY_DESCRIPTOR tall = {1, TALL, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    CUarray array;
    CHECK(cu(cuArrayCreate_v2)(&array, &tall));
    stage("array");
    CHECK(cu(cuArrayDestroy)(array));
}

/* A pool keeps freed memory. */
static void pool(size_t limit) {
    const CUmemPoolProps props = {.allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    unsigned long long everything = ~0ull;
    CUmemoryPool own;
    CUdeviceptr at, other;
    CUstream stream = new_stream();
    CHECK(cu(cuMemPoolCreate)(&own, &props));
    CHECK(cu(cuMemPoolSetAttribute)(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything));
    CHECK(cu(cuMemAllocFromPoolAsync)(&at, 100 * MIB, own, stream));
    stage("pooled");
    CHECK(cu(cuMemFreeAsync)(at, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    stage("kept");
    /* Other allocations can have all of the pool's spare memory. */
    CHECK(cu(cuMemAlloc_v2)(&other, limit));
    stage("trimmed");
    CHECK(cu(cuMemFree_v2)(other));
    CHECK(cu(cuMemAllocFromPoolAsync)(&at, 40 * MIB, own, stream));
    /* At the limit, the pool itself can still allocate its spare memory. */
    CHECK(cu(cuMemFreeAsync)(at, stream));
    CHECK(cu(cuMemAllocFromPoolAsync)(&at, 10 * MIB, own, stream));
    CHECK(cu(cuMemAlloc_v2)(&other, limit - 40 * MIB));
    CHECK(cu(cuMemAllocFromPoolAsync)(&small[0], 20 * MIB, own, stream));
    CUresult code = cu(cuMemAllocFromPoolAsync)(&small[1], 20 * MIB, own, stream);
    printf("full %d\n", code);
    stage("spare");
    CHECK(cu(cuMemFree_v2)(other));
    CHECK(cu(cuMemPoolDestroy)(own));
    stage("orphaned");
    CHECK(cu(cuMemFreeAsync)(at, stream));
    CHECK(cu(cuMemFreeAsync)(small[0], stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    stage("destroyed");
}

/* A captured allocation takes no memory. Its graph does at the launch, and keeps the memory. */
static void graph(size_t limit) {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at, other;
    CUstream stream = new_stream();
    CHECK(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cu(cuMemAllocAsync)(&at, 50 * MIB, stream));
    CHECK(cu(cuMemFreeAsync)(at, stream));
    CHECK(cu(cuStreamEndCapture)(stream, &graph));
    CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    stage("captured");
    for (int i = 0; i < 3; i++)
        CHECK(cu(cuGraphLaunch)(exec, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    stage("launched");
    /* A pool can take the memory that graphs keep, and graphs can take it again afterwards. */
    CHECK(cu(cuMemAllocAsync)(&other, limit - 20 * MIB, stream));
    stage("pooled");
    CHECK(cu(cuMemFreeAsync)(other, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuGraphLaunch)(exec, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    stage("launched again");
    CHECK(cu(cuDeviceGraphMemTrim)(0));
    stage("given back");
    /* An upload takes the memory of the next launch. */
    CHECK(cu(cuGraphUpload)(exec, stream));
    stage("uploaded");
    CHECK(cu(cuGraphLaunch)(exec, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    stage("launched at last");
    CHECK(cu(cuDeviceGraphMemTrim)(0));
    CUDA_GRAPH_INSTANTIATE_PARAMS with_upload = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, .upload_stream = stream};
    CUgraphExec second;
    CHECK(cu(cuGraphInstantiateWithParams)(&second, graph, &with_upload));
    stage("made and uploaded");
    CHECK(cu(cuDeviceGraphMemTrim)(0));
    /* The limit is 400 MiB, so the graph has no room any more. */
    CHECK(cu(cuMemAlloc_v2)(&other, 360 * MIB));
    printf("full %d\n", cu(cuGraphUpload)(exec, stream));
    printf("full %d\n", cu(cuGraphLaunch)(exec, stream));
    CUgraphExec third;
    printf("full %d\n", cu(cuGraphInstantiateWithParams)(&third, graph, &with_upload));
    printf("because of %d\n", with_upload.result);
    stage("refused");
    CHECK(cu(cuGraphExecDestroy)(second));
    CHECK(cu(cuMemFree_v2)(other));
    CHECK(cu(cuGraphExecDestroy)(exec));
    CHECK(cu(cuGraphDestroy)(graph));
    stage("end");
}

/* Launches a graph that allocates. The launch may have to wait. */
static void late(size_t bytes) {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at;
    CUstream stream = new_stream();
    CHECK(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cu(cuMemAllocAsync)(&at, bytes, stream));
    CHECK(cu(cuMemFreeAsync)(at, stream));
    CHECK(cu(cuStreamEndCapture)(stream, &graph));
    CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    CHECK(cu(cuGraphLaunch)(exec, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    puts("launched");
}

int main(int argc, char **argv) {
    usage(argc == 3, "kept WHAT LIMIT_BYTES");
    size_t limit = strtoull(argv[2], NULL, 10);
    open_context();
    if (!strcmp(argv[1], "slabs"))
        slabs();
    else if (!strcmp(argv[1], "tight"))
        tight(limit);
    else if (!strcmp(argv[1], "array"))
        array();
    else if (!strcmp(argv[1], "pool"))
        pool(limit);
    else if (!strcmp(argv[1], "graph"))
        graph(limit);
    else if (!strcmp(argv[1], "late"))
        late(limit);
    else {
        CUdeviceptr all;
        CHECK(cu(cuMemAlloc_v2)(&all, limit));
        puts("all of it");
    }
    return 0;
}
