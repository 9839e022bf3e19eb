/* Preloaded into a program: delays renames as a file system on a busy disk does. While the file
 * SLOW_RENAME_WHILE exists, a rename waits. The library creates the file SLOW_RENAME_TELLS to show
 * that a rename waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { LOOK_US = 1000 };

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    const char *held = getenv("SLOW_RENAME_WHILE"), *tells = getenv("SLOW_RENAME_TELLS");
    if (held && tells && !access(held, F_OK)) {
        int told = open(tells, O_CREAT | O_WRONLY, 0600);
        if (told >= 0) close(told);
        while (!access(held, F_OK)) usleep(LOOK_US);
    }
    return real(from, to);
}
