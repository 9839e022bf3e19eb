/* Preloaded into a program that reads the size of the host's memory: opens the file MEMINFO instead
 * of /proc/meminfo. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef int opener(const char *, int, ...);

static int open_by(const char *name, const char *path, int flags, mode_t mode) {
    opener *real = (opener *)dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5");
    const char *instead = getenv("MEMINFO");
    return real(instead && !strcmp(path, "/proc/meminfo") ? instead : path, flags, mode);
}

/* Both functions are the same on this machine, and programs call either. */
#define OPEN(name)                          \
    int name(const char *path, int flags, ...) { \
        va_list rest;                       \
        va_start(rest, flags);              \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest);                       \
        return open_by(#name, path, flags, mode); \
    }
OPEN(open) OPEN(open64)
