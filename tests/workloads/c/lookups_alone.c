/* A library that looks up a name that has nothing to do with a GPU. */
#include <dlfcn.h>
#include <stddef.h>

int launch_some(void *kernel, int count) {
    void *self = dlopen(NULL, RTLD_NOW);
    return !self || dlsym(self, "printf") || !kernel || !count ? 0 : -1;
}
