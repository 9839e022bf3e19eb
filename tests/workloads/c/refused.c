/* refused KERNEL LAUNCHES PAUSE_US: launches a kernel by two entry points in turn, with a pause
 * after each launch. Injected faults say which launches the driver refuses. Prints the number of
 * accepted launches. */
#include "driver.h"
#include <unistd.h>

int main(int argc, char **argv) {
    usage(argc == 4, "refused KERNEL LAUNCHES PAUSE_US");
    open_context();
    CUfunction kernel = load_kernel(argv[1]);
    int taken = 0;
    for (int i = 0; i < atoi(argv[2]); i++) {
        CUlaunchConfig config = {.grid = {1, 1, 1}, .block = {32, 1, 1}};
        CUresult result = i % 2 ? cu(cuLaunchKernelEx)(&config, kernel, NULL, NULL)
                                : launch_on(kernel, NULL);
        taken += result == 0;
        usleep(atoi(argv[3]));
    }
    CHECK(cu(cuCtxSynchronize)());
    printf("{\"kernel_launches\":%d}\n", taken);
    wait_for_end_of_input();
    return 0;
}
