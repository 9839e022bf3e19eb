/* Preloaded into a program: while there is the file SLOW_RENAME_WHILE, a file that takes another's name does so only once that is gone, and the file
 * SLOW_RENAME_TELLS says that one waits. So does a file system whose disk is busy. */
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
