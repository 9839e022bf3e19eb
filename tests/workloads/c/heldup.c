/* heldup: prints `ready`, then makes the call that each line of its input names. When the call has
 * returned, prints `done` and the name. */
#include "driver.h"
#include <string.h>

enum { BYTES = 2 << 20 };

int main(void) {
    char line[64];
    unsigned char bytes[64] = {0};
    size_t free_bytes, total_bytes;
    CUdeviceptr held, other = 0;
    CUstream stream, fresh;
    CUmodule module = NULL;
    open_context();
    CUfunction kernel = load_kernel("busy_1000us");
    CHECK(cu(cuMemAlloc_v2)(&held, BYTES));
    stream = new_stream();
    fresh = new_stream();
    CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CHECK(cu(cuStreamSynchronize)(stream));
    puts("ready");
    for (fflush(stdout); fgets(line, sizeof line, stdin); fflush(stdout)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "copy")) CHECK(cu(cuMemcpyDtoH_v2)(bytes, held, sizeof bytes));
        else if (!strcmp(line, "copy-async")) CHECK(cu(cuMemcpyHtoDAsync_v2)(held, bytes, sizeof bytes, stream));
        else if (!strcmp(line, "wait")) CHECK(cu(cuStreamSynchronize)(stream));
        else if (!strcmp(line, "wait-for-all")) CHECK(cu(cuCtxSynchronize)());
        else if (!strcmp(line, "free-bytes")) CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
        else if (!strcmp(line, "allocate")) CHECK(cu(cuMemAlloc_v2)(&other, BYTES));
        else if (!strcmp(line, "free")) CHECK(cu(cuMemFree_v2)(other));
        else if (!strcmp(line, "allocate-async")) CHECK(cu(cuMemAllocAsync)(&other, BYTES, stream));
        else if (!strcmp(line, "free-async")) CHECK(cu(cuMemFreeAsync)(other, stream));
        else if (!strcmp(line, "load")) module = load_module("busy_1000us");
        else if (!strcmp(line, "unload")) CHECK(cu(cuModuleUnload)(module));
        else if (!strcmp(line, "launch")) CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        else if (!strcmp(line, "first-launch")) CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, fresh, NULL, NULL));
        else if (!strcmp(line, "end-stream")) CHECK(cu(cuStreamDestroy_v2)(fresh));
        else return fprintf(stderr, "heldup: no call is named `%s`\n", line), 2;
        printf("done %s\n", line);
    }
    return 0;
}
