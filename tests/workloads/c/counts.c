/* A preloaded tool that exports one of the driver's functions. The tool counts the calls and passes
 * them on to the next library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

typedef unsigned long long word;

static word launches;

int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
                   void **extra) {
    static int (*next)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "cuLaunchKernel");
    launches++;
    return next(kernel, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

__attribute__((destructor)) static void tell(void) {
    fprintf(stderr, "counted %llu\n", launches);
}
