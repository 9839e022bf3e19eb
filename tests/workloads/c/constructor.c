/* A library whose constructor calls dlsym while the dynamic linker's lock is held, as libraries of
 * frameworks do. Before the look-up it writes to a pipe that it has begun. */
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
