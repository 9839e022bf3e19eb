/* second_copy LIBRARY [namespace]: uses the driver while it also looks up functions in another copy
 * of the driver, LIBRARY. With `namespace` the copy is in a linker namespace of its own. Prints the
 * driver's results, and the result of allocating 6 GiB. */
#define _GNU_SOURCE
#include "driver.h"
#include <string.h>

static void look_up(const char *path, int is_apart) {
    static const char *names[] = {"cuLaunchKernel",      "cuMemAlloc_v2",   "cuMemFree_v2",      "cuMemGetInfo_v2",
                                  "cuStreamSynchronize", "cuMemAllocAsync", "cuCtxSynchronize", "cuGetProcAddress_v2"};
    void *copy = is_apart ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW) : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!copy) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!dlsym(copy, names[i])) exit(1);
}

int main(int argc, char **argv) {
    usage(argc >= 2, "second_copy LIBRARY [namespace]");
    int is_apart = argc > 2 && !strcmp(argv[2], "namespace");
    CUdeviceptr small, large;
    size_t free_bytes, total_bytes;
#ifdef WAY_LINKED
    /* A linked program can look up the copy before its own first call of the driver. */
    look_up(argv[1], is_apart);
#endif
    open_context();
    CUfunction kernel = load_kernel("quick");
    look_up(argv[1], is_apart);
    printf("launched %d\n", cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    printf("allocated %d\n", cu(cuMemAlloc_v2)(&small, 1 << 20));
    printf("asked %d\n", cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
    printf("waited %d %d\n", cu(cuStreamSynchronize)(NULL), cu(cuCtxSynchronize)());
    printf("freed %d\n", cu(cuMemFree_v2)(small));
    fflush(stdout);
    printf("6 GiB: %d\n", cu(cuMemAlloc_v2)(&large, 6ull << 30));
    wait_for_end_of_input();
    return 0;
}
