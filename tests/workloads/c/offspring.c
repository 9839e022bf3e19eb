/* offspring: opens a context, launches, and prints `ready`. For each line of its input it forks a
 * child that sleeps for a minute, and prints the child's process id. */
#include "driver.h"
#include <unistd.h>

int main(void) {
    open_context();
    CUfunction kernel = load_kernel("quick");
    CHECK(launch_on(kernel, NULL));
    CHECK(cu(cuCtxSynchronize)());
    say("ready");
    for (int c = getchar(); c != EOF; c = getchar()) {
        if (c != '\n') continue;
        pid_t child = fork();
        if (child == 0) {
            sleep(60);
            _exit(0);
        }
        printf("%d\n", (int)child);
        fflush(stdout);
    }
    return 0;
}
