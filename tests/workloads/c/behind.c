/* behind LAUNCHES: queues launches behind a wait, and ends the wait only after the last launch. The
 * launches wait for a value in memory, or for an event of another stream that waits for the value.
 * In half of the rounds the program destroys the stream while its launches wait. Prints the number
 * of launches. */
#include "driver.h"

enum { ROUNDS = 3 };

int main(int argc, char **argv) {
    long launches = argc == 2 ? atol(argv[1]) : 0;
    CUstream streams[2] = {NULL, NULL};
    CUevent event;
    CUdeviceptr at;
    unsigned *value;
    usage(launches > 0, "behind LAUNCHES");
    open_context();
    CUfunction kernel = load_kernel("quick");
    CHECK(cu(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cu(cuMemHostAlloc)((void **)&value, sizeof *value, CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(cu(cuMemHostGetDevicePointer_v2)(&at, value, 0));
    long launched = 0;
    for (int round = 0; round < 4 * ROUNDS; round++) {
        for (int i = 0; i < 2; i++)
            if (!streams[i]) CHECK(cu(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING));
        __atomic_store_n(value, 0, __ATOMIC_SEQ_CST);
        CHECK(cu(cuStreamWaitValue32_v2)(streams[0], at, 1, CU_STREAM_WAIT_VALUE_EQ));
        CUstream stream = streams[round % 2];
        if (stream != streams[0]) {
            CHECK(cu(cuEventRecord)(event, streams[0]));
            CHECK(cu(cuStreamWaitEvent)(stream, event, 0));
        }
        for (long i = 0; i < launches; i++, launched++)
            CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1 + i % 7, 1, 1, 1, 0, stream, NULL, NULL));
        if (round / 2 % 2) {
            CHECK(cu(cuStreamDestroy_v2)(stream));
            streams[round % 2] = NULL;
        }
        __atomic_store_n(value, 1, __ATOMIC_SEQ_CST);
        CHECK(cu(cuCtxSynchronize)());
    }
    printf("{\"kernel_launches\":%ld}\n", launched);
    wait_for_end_of_input();
    return 0;
}
