/* A third-party preload library, as counting or tracing tools are. The library exports one of the
 * driver's functions and calls the next one in the search order. */
#define _GNU_SOURCE
#include <dlfcn.h>

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    static int (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "cuLaunchKernel");
    return real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
