/* forks: initialises the driver, launches, and forks. One child calls the driver, another runs a
 * different program, and the parent goes on launching. Prints one JSON line. */
#include "driver.h"
#include <sys/wait.h>
#include <unistd.h>

static void launch(CUfunction kernel, int times) {
    for (int i = 0; i < times; i++)
        CHECK(launch_on(kernel, NULL));
    CHECK(cu(cuCtxSynchronize)());
}

int main(void) {
    int pipe_ends[2];
    open_context();
    CUfunction kernel = load_kernel("quick");
    launch(kernel, 100);
    if (pipe(pipe_ends)) return 1;
    pid_t calling = fork();
    if (calling == 0) {
        /* A forked DataLoader worker that calls the driver must get an error of the driver, and
         * must not hang or crash. */
        size_t free_bytes = 0, total_bytes = 0;
        CUresult codes[2] = {cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes),
                             launch_on(kernel, NULL)};
        _exit(write(pipe_ends[1], codes, sizeof codes) != sizeof codes);
    }
    pid_t executing = fork();
    if (executing == 0) {
        execlp("true", "true", (char *)NULL);
        _exit(127);
    }
    launch(kernel, 100);
    int calling_status, executing_status;
    CUresult codes[2] = {-1, -1};
    waitpid(calling, &calling_status, 0);
    waitpid(executing, &executing_status, 0);
    if (read(pipe_ends[0], codes, sizeof codes) != sizeof codes) return 1;
    launch(kernel, 100);
    printf("{\"child_info\":%d,\"child_launch\":%d,\"child_status\":%d,\"exec_status\":%d,\"kernel_launches\":300}\n", codes[0],
           codes[1], calling_status, executing_status);
    wait_for_end_of_input();
    return 0;
}
