/* A hook library that only exports the driver's names. A program that looks names up in the
 * driver's own library bypasses it. The library counts the launches that it sees, for hazards.c. */
#define _GNU_SOURCE
#include <dlfcn.h>

typedef int (*launcher)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int exported_launches;

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
    launcher real = (launcher)0;
    *(void **)&real = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuLaunchKernel");
    exported_launches++;
    return real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
