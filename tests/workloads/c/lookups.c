/* lookups LIBRARY: prints the results of dlsym and dlvsym in a program that is not linked to
 * libcuda, in a form that does not depend on addresses. LIBRARY exports names that look like the
 * driver's (lookalikes.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int own_symbol = 1;

static void tell(const char *what, const char *name, void *address) {
    Dl_info info;
    const char *owner = "nobody";
    if (address && dladdr(address, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        owner = slash ? slash + 1 : info.dli_fname;
    }
    printf("%s %s: %s\n", what, name, address ? owner : "absent");
}

static void by_name(const char *what, void *handle, const char *name) {
    dlerror();
    void *address = dlsym(handle, name);
    const char *error = dlerror();
    tell(what, name, address);
    /* The text before this part names an object, which may differ. */
    const char *problem = error ? strstr(error, "undefined symbol") : NULL;
    if (error) printf("  %s\n", problem ? problem : error);
}

int main(int argc, char **argv) {
    static const char *const driver_names[] = {"cuInit", "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemAlloc_v2",
                                               "cuGetProcAddress", "cuGetProcAddress_v2"};
    static const char *const lookalikes[] = {"cudnnCreate", "cublasCreate_v2", "cudaMalloc", "curl_easy_init",
                                             "cuInitialize", "cuLaunchKernelFancy", "cu", "cup"};
    if (argc != 2) {
        fprintf(stderr, "usage: lookups LIBRARY\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof driver_names / sizeof *driver_names; i++) {
        by_name("default", RTLD_DEFAULT, driver_names[i]);
        by_name("next", RTLD_NEXT, driver_names[i]);
    }
    by_name("default", RTLD_DEFAULT, "getpid");
    by_name("next", RTLD_NEXT, "getpid");
    by_name("default", RTLD_DEFAULT, "own_symbol");
    by_name("next", RTLD_NEXT, "own_symbol");
    by_name("default", RTLD_DEFAULT, "no_such_symbol_anywhere");
    tell("dlvsym", "memcpy", dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.2.5"));
    tell("dlvsym", "memcpy of no version", dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_9.9"));
    void *math = dlopen("libm.so.6", RTLD_NOW);
    by_name("libm", math, "cos");
    by_name("libm", math, "cuInit");
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) printf("%s\n", dlerror());
    for (size_t i = 0; library && i < sizeof lookalikes / sizeof *lookalikes; i++)
        by_name("lookalike", library, lookalikes[i]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) printf("%s\n", dlerror());
    int (*start)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    if (start) printf("cuInit: %d\n", start(0));
    return 0;
}
