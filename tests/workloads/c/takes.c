/* A library that looks up dlsym in the C library itself and wraps nothing. No other library sees
 * look-ups by that address. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *(*taken)(void *, const char *);

__attribute__((constructor)) static void take(void) {
    *(void **)&taken = dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "dlsym");
}
