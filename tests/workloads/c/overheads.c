/* overheads: creates and ends objects for which the driver itself takes memory. Reads one command a
 * line and answers each with `NUMBER CODE`; CODE is the driver's result. */
#include "driver.h"
#include <string.h>

enum { MANY = 64, TEXT = 512 };

static CUcontext contexts[MANY];
static CUmodule modules[MANY];
static CUlibrary libraries[MANY];
static CUdeviceptr memory[MANY];
static CUcontext primary;

/* Returns a module in this version of PTX with a variable of so many bytes. */
static const char *image_in(const char *version, unsigned long long bytes) {
    static char ptx[TEXT];
    snprintf(ptx, sizeof ptx,
             ".version %s\n.target sm_70\n.address_size 64\n"
             ".visible .global .align 8 .b8 large[%llu];\n.visible .entry nothing()\n{\n\tret;\n}\n",
             version, bytes);
    return ptx;
}

static const char *image(unsigned long long bytes) { return image_in("7.0", bytes); }
/* Returns a module in a version of PTX that no driver knows. */
static const char *wrong_image(unsigned long long bytes) { return image_in("42.0", bytes); }

/* Runs one command on object number `which`. */
static CUresult answer(const char *what, int which, unsigned long long bytes) {
    if (!strcmp(what, "create"))
        return cu(cuCtxCreate_v2)(&contexts[which], CU_CTX_SCHED_AUTO, 0);
    if (!strcmp(what, "destroy"))
        return cu(cuCtxDestroy_v2)(contexts[which]);
    if (!strcmp(what, "retain")) {
        CUresult code = cu(cuDevicePrimaryCtxRetain)(&primary, 0);
        return code == CUDA_SUCCESS ? cu(cuCtxSetCurrent)(primary) : code;
    }
    if (!strcmp(what, "release"))
        return cu(cuDevicePrimaryCtxRelease_v2)(0);
    if (!strcmp(what, "reset"))
        return cu(cuDevicePrimaryCtxReset_v2)(0);
    if (!strcmp(what, "allocate"))
        return cu(cuMemAlloc_v2)(&memory[which], bytes);
    if (!strcmp(what, "free"))
        return cu(cuMemFree_v2)(memory[which]);
    if (!strcmp(what, "load"))
        return cu(cuModuleLoadData)(&modules[which], image(bytes));
    if (!strcmp(what, "load-wrong"))
        return cu(cuModuleLoadData)(&modules[which], wrong_image(bytes));
    if (!strcmp(what, "open-wrong"))
        return cu(cuLibraryLoadData)(&libraries[which], wrong_image(bytes), NULL, NULL, 0, NULL, NULL, 0);
    if (!strcmp(what, "use"))
        return cu(cuLibraryGetModule)(&modules[which], libraries[which]);
    if (!strcmp(what, "unload"))
        return cu(cuModuleUnload)(modules[which]);
    if (!strcmp(what, "open"))
        return cu(cuLibraryLoadData)(&libraries[which], image(bytes), NULL, NULL, 0, NULL, NULL, 0);
    if (!strcmp(what, "close"))
        return cu(cuLibraryUnload)(libraries[which]);
    fprintf(stderr, "overheads: what is `%s`?\n", what);
    exit(2);
}

/* Runs one command, and checks that a refused command leaves no handle behind. */
static CUresult run(const char *what, int which, unsigned long long bytes) {
    void *before[] = {contexts[which], modules[which], libraries[which], primary};
    CUresult code = answer(what, which, bytes);
    void *after[] = {contexts[which], modules[which], libraries[which], primary};
    for (int i = 0; i < 4 && code != CUDA_SUCCESS; i++) {
        if (after[i] && after[i] != before[i]) {
            fprintf(stderr, "overheads: a dead handle is left by `%s`\n", what);
            exit(3);
        }
    }
    return code;
}

int main(void) {
    load_driver();
    CHECK(cu(cuInit)(0));
    char what[16];
    int which;
    unsigned long long bytes;
    for (int number = 0; scanf("%15s %d %llu", what, &which, &bytes) == 3 && which >= 0 && which < MANY; number++) {
        printf("%d %d\n", number, run(what, which, bytes));
        fflush(stdout);
    }
    return 0;
}
