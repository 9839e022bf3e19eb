/* inside LAUNCHES ALLOCATIONS: a program that contains the driver's functions, as a static program
 * does. Calls them as often as its arguments say, and waits for the end of its input. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DRIVERS __attribute__((noinline, visibility("default")))

static volatile int called;

DRIVERS int cuInit(unsigned flags) { called++; return (int)flags; }
DRIVERS int cuLaunchKernel(void *function) { called++; return function != NULL; }
DRIVERS int cuMemAlloc_v2(void **memory, size_t bytes) { called++; *memory = NULL; return bytes == 0; }

int main(int count, char **arguments) {
    int launches = count > 1 ? atoi(arguments[1]) : 0, allocations = count > 2 ? atoi(arguments[2]) : 0;
    void *memory;
    char byte;
    cuInit(0);
    for (int i = 0; i < launches; i++) cuLaunchKernel(NULL);
    for (int i = 0; i < allocations; i++) cuMemAlloc_v2(&memory, 1 << 20);
    printf("{\"called\":%d}\n", called);
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
