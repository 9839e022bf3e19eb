/* launches: launches through every entry point, some of them several times. Prints the number of
 * launches of each kind as one JSON object, and stays until its standard input is closed. */
#include "driver.h"

enum { PER_ENTRY_POINT = 50, KERNELS_IN_GRAPH = 3 };

int main(void) {
    CUcontext context = open_context();
    CUfunction kernel = load_kernel("quick");
    CUstream stream = new_stream();

    CUlaunchConfig on_stream = {.grid = {1, 1, 1}, .block = {32, 1, 1}, .stream = stream};
    CUlaunchConfig on_default = {.grid = {1, 1, 1}, .block = {32, 1, 1}, .stream = NULL};
    CUlaunchParams on_one_device = {.function = kernel, .grid = {1, 1, 1}, .block = {32, 1, 1}, .stream = stream};
    int kernels = 0, graphs = 0;
    CHECK(cu(cuFuncSetBlockShape)(kernel, 32, 1, 1));
    for (int i = 0; i < PER_ENTRY_POINT; i++) {
        CHECK(launch_on(kernel, NULL));
        CHECK(launch_on(kernel, stream));
        CHECK(cu(cuLaunchKernel_ptsz)(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        CHECK(cu(cuLaunchKernelEx)(&on_stream, kernel, NULL, NULL));
        CHECK(cu(cuLaunchKernelEx_ptsz)(&on_default, kernel, NULL, NULL));
        CHECK(cu(cuLaunchCooperativeKernel)(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL));
        CHECK(cu(cuLaunchCooperativeKernel_ptsz)(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL));
        CHECK(cu(cuLaunch)(kernel));
        CHECK(cu(cuLaunchGrid)(kernel, 1, 1));
        CHECK(cu(cuLaunchGridAsync)(kernel, 1, 1, stream));
        CHECK(cu(cuLaunchCooperativeKernelMultiDevice)(&on_one_device, 1, 0));
        kernels += 11;
    }

    /* Captured launches do not execute; the graph's launches do. */
    CUgraph graph = capture_launches(kernel, stream, CU_STREAM_CAPTURE_MODE_GLOBAL, KERNELS_IN_GRAPH);
    CUgraphExec exec;
    size_t nodes = 0;
    CHECK(cu(cuGraphGetNodes)(graph, NULL, &nodes));
    CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    for (int i = 0; i < PER_ENTRY_POINT; i++) {
        CHECK(cu(cuGraphLaunch)(exec, stream));
        CHECK(cu(cuGraphLaunch_ptsz)(exec, NULL));
        graphs += 2;
    }
    CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuStreamSynchronize_ptsz)(NULL));
    CHECK(cu(cuCtxSynchronize)());

    printf("{\"way\":\"%s\",\"kernel_launches\":%d,\"graph_launches\":%d,\"graph_nodes\":%zu,\"kernels_run\":%d}\n", WAY,
           kernels, graphs, nodes, kernels + graphs * KERNELS_IN_GRAPH);
    wait_for_end_of_input();
    CHECK(cu(cuGraphExecDestroy)(exec));
    CHECK(cu(cuGraphDestroy)(graph));
    CHECK(cu(cuCtxDestroy_v2)(context));
    return 0;
}
