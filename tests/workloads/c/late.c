/* late LIBRARY: opens deepbound.c with RTLD_DEEPBIND, and lets it initialise the driver. Then makes
 * a context, and prints the result of allocating 2 GiB. */
#define _GNU_SOURCE
#include "driver.h"

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
    int (*initialise)(void) = NULL;
    if (library) *(void **)&initialise = dlsym(library, "initialise");
    if (!initialise) {
        fprintf(stderr, "late: %s\n", dlerror());
        return 2;
    }
    CHECK(initialise());
    load_driver();
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
    CHECK(cu(cuDeviceGet)(&device, 0));
    CHECK(cu(cuCtxCreate_v2)(&context, CU_CTX_SCHED_AUTO, device));
    printf("{\"allocated\":%d}\n", cu(cuMemAlloc_v2)(&memory, 2ull << 30));
    return 0;
}
