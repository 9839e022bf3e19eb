/* A library whose constructor looks something up while the dynamic linker's lock is held, as the libraries of a framework do. It first tells by a
 * pipe that it has begun. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void construct(void) {
    const char *pipe = getenv("CONSTRUCTOR_PIPE");
    if (!pipe || write(atoi(pipe), "", 1) != 1) return;
    usleep(200 * 1000);
    printf("looked up in a constructor: %d\n", dlsym(RTLD_DEFAULT, "getppid") != NULL);
}
