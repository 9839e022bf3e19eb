/* spawns COUNT: a program that does not use the driver, with so many idle child processes. Prints
 * `{}` once they are there, and waits for the end of its input. The children share its memory, so
 * that they take little. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { STACK_BYTES = 16 << 10 };

static int idle(void *nothing) {
    (void)nothing;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (pause()) {
    }
    return 0;
}

int main(int count, char **arguments) {
    long children = count > 1 ? atol(arguments[1]) : 0;
    char byte;
    for (long child = 0; child < children; child++) {
        char *stack = malloc(STACK_BYTES);
        if (!stack || clone(idle, stack + STACK_BYTES, CLONE_VM | SIGCHLD, NULL) < 0) {
            perror("spawns");
            return 1;
        }
    }
    puts("{}");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}
