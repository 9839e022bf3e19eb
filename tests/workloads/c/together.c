/* together KERNEL: launches on two GPUs by one call. Each line of its input is one command. The
 * program answers with one line when the command is done.
 *
 *   launch N   makes N calls and waits for each on both GPUs; prints `calling I` before call I of
 *              the process and `called I` after it, then `done 0`
 *   amid N     makes N calls without a wait, and an invalid call after each; prints `done CODE`
 *              with the code of the last invalid call
 *   twice      makes a call with one stream twice; prints `done CODE`
 *   default    makes a call with a default stream on the second GPU; prints `done CODE` */
#include "driver.h"
#include <string.h>

enum { GPUS = 2 };

int main(int argc, char **argv) {
    CUlaunchParams both[GPUS];
    CUcontext contexts[GPUS];
    char line[64];
    usage(argc == 2, "together KERNEL");
    load_driver();
    CHECK(cu(cuInit)(0));
    memset(both, 0, sizeof both);
    for (int i = 0; i < GPUS; i++) {
        CHECK(cu(cuCtxCreate_v2)(&contexts[i], CU_CTX_SCHED_AUTO, i));
        both[i] = (CUlaunchParams){.function = load_kernel(argv[1]), .grid = {1, 1, 1}, .block = {32, 1, 1}};
        CHECK(cu(cuStreamCreate)(&both[i].stream, CU_STREAM_NON_BLOCKING));
    }
    say("ready");
    for (long calls = 0; fgets(line, sizeof line, stdin);) {
        CUresult code = CUDA_SUCCESS;
        long count = 0;
        if (sscanf(line, "launch %ld", &count) == 1) {
            for (long i = 0; i < count; i++) {
                printf("calling %ld\n", ++calls);
                fflush(stdout);
                CHECK(cu(cuLaunchCooperativeKernelMultiDevice)(both, GPUS, 0));
                printf("called %ld\n", calls);
                fflush(stdout);
                for (int gpu = 0; gpu < GPUS; gpu++) {
                    CHECK(cu(cuCtxSetCurrent)(contexts[gpu]));
                    CHECK(cu(cuStreamSynchronize)(both[gpu].stream));
                }
            }
        } else if (sscanf(line, "amid %ld", &count) == 1) {
            CUlaunchParams wrong[GPUS] = {both[0], both[1]};
            wrong[1].stream = NULL;
            for (long i = 0; i < count; i++) {
                CHECK(cu(cuLaunchCooperativeKernelMultiDevice)(both, GPUS, 0));
                code = cu(cuLaunchCooperativeKernelMultiDevice)(wrong, GPUS, 0);
            }
            for (int gpu = 0; gpu < GPUS; gpu++) {
                CHECK(cu(cuCtxSetCurrent)(contexts[gpu]));
                CHECK(cu(cuStreamSynchronize)(both[gpu].stream));
            }
        } else {
            CUlaunchParams wrong[GPUS] = {both[0], both[1]};
            if (!strcmp(line, "twice\n")) wrong[1] = both[0];
            else wrong[1].stream = NULL;
            code = cu(cuLaunchCooperativeKernelMultiDevice)(wrong, GPUS, 0);
        }
        printf("done %d\n", code);
        fflush(stdout);
    }
    return 0;
}
