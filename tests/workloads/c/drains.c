/* drains KERNEL: creates a context, queues some kernels there and destroys the context while they
 * are queued, over and over. Prints the number of launches. */
#include "driver.h"

enum { ROUNDS = 12, KERNELS = 20 };

int main(int argc, char **argv) {
    usage(argc == 2, "drains KERNEL");
    open_context();
    for (int round = 0; round < ROUNDS; round++) {
        CUcontext context;
        CHECK(cu(cuCtxCreate_v2)(&context, 0, 0));
        CUfunction kernel = load_kernel(argv[1]);
        for (int i = 0; i < KERNELS; i++)
            CHECK(launch_on(kernel, NULL));
        CHECK(cu(cuCtxDestroy_v2)(context));
    }
    printf("{\"kernel_launches\":%d}\n", ROUNDS * KERNELS);
    wait_for_end_of_input();
    return 0;
}
