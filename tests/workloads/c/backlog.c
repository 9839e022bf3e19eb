/* backlog: keeps the GPU backlogged with kernels of one name. The simulated GPU knows the kernels'
 * time by their name.
 *
 *   backlog [--kernel NAME] [--seconds S] [--sync-every N] [--streams N] [--graph KERNELS]
 *           [--blocks BLOCKS] [--wide-after S] [--hold BYTES] [--progress]
 *
 *   --seconds S      0 (the default): runs until it is killed
 *   --sync-every N   waits after every N launches; 0: never
 *   --streams N      0: the legacy default stream
 *   --graph KERNELS  launches a graph of so many kernels instead of single kernels
 *   --blocks BLOCKS  blocks of one warp in each launch (1)
 *   --wide-after S   after S seconds, launches a hundred times as many blocks
 *   --hold BYTES     allocates memory first
 *   --progress       prints the number of launches about every 10 ms
 *
 * Prints one JSON line: the number of launches, and the longest time that a launch call took. */
#include "driver.h"
#include <string.h>
#include <time.h>

enum { MAX_STREAMS = 64, PROGRESS_NS = 10 * 1000 * 1000, WIDER = 100 };

int main(int argc, char **argv) {
    const char *name = "busy_1000us";
    double seconds = 0, wide_after = 0;
    unsigned blocks = 1;
    long sync_every = 32, streams = 1, graph_kernels = 0, progress = 0;
    unsigned long long hold_bytes = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--progress")) {
            progress = 1;
            continue;
        }
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--kernel")) name = value;
        else if (!strcmp(argv[i], "--seconds")) seconds = atof(value);
        else if (!strcmp(argv[i], "--sync-every")) sync_every = atol(value);
        else if (!strcmp(argv[i], "--streams")) streams = atol(value);
        else if (!strcmp(argv[i], "--graph")) graph_kernels = atol(value);
        else if (!strcmp(argv[i], "--blocks")) blocks = (unsigned)strtoul(value, NULL, 10);
        else if (!strcmp(argv[i], "--wide-after")) wide_after = atof(value);
        else if (!strcmp(argv[i], "--hold")) hold_bytes = strtoull(value, NULL, 10);
        else {
            fprintf(stderr, "backlog: unknown option %s\n", argv[i]);
            return 2;
        }
        i++;
    }
    if (streams < 0 || streams > MAX_STREAMS || sync_every < 0 || (graph_kernels && !streams)) {
        fprintf(stderr, "backlog: 0 to %d streams, and a graph needs one\n", MAX_STREAMS);
        return 2;
    }
    CUcontext context = open_context();
    CUfunction kernel = load_kernel(name);
    CUstream on[MAX_STREAMS];
    CUdeviceptr held;
    for (long i = 0; i < streams; i++)
        CHECK(cu(cuStreamCreate)(&on[i], CU_STREAM_NON_BLOCKING));
    if (hold_bytes) CHECK(cu(cuMemAlloc_v2)(&held, hold_bytes));
    CUgraphExec exec = NULL;
    if (graph_kernels) {
        CUgraph graph =
            capture_blocks(kernel, blocks, on[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, graph_kernels);
        CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    }
    say("ready");

    long long start = now_ns(), end = start + (long long)(seconds * 1e9), last_progress = start;
    long launches = 0;
    long long longest_launch_ns = 0;
    while (seconds == 0 || now_ns() < end) {
        if (wide_after != 0 && now_ns() - start > wide_after * 1e9) {
            wide_after = 0;
            blocks *= WIDER;
        }
        CUstream stream = streams ? on[launches % streams] : NULL;
        long long before = now_ns();
        if (exec) CHECK(cu(cuGraphLaunch)(exec, stream));
        else CHECK(launch_blocks(kernel, blocks, stream));
        long long took_ns = now_ns() - before;
        if (took_ns > longest_launch_ns) longest_launch_ns = took_ns;
        launches++;
        if (sync_every && launches % sync_every == 0) CHECK(cu(cuCtxSynchronize)());
        if (progress && now_ns() - last_progress >= PROGRESS_NS) {
            last_progress = now_ns();
            printf("%ld\n", launches);
            fflush(stdout);
        }
    }
    CHECK(cu(cuCtxSynchronize)());
    printf("{\"launches\":%ld,\"longest_launch_ms\":%.3f,\"seconds\":%.6f}\n", launches, longest_launch_ns / 1e6,
           (now_ns() - start) / 1e9);
    wait_for_end_of_input();
    CHECK(cu(cuCtxDestroy_v2)(context));
    return 0;
}
