/* A library that takes dlsym from the C library itself and wraps nothing: what it finds by that, nobody else sees. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *(*taken)(void *, const char *);

__attribute__((constructor)) static void take(void) {
    *(void **)&taken = dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "dlsym");
}
