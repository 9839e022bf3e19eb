/* A framework's library that reaches the driver in two ways. The library is linked to forwards.c,
 * which stands for the driver. Its runtime library queries the driver itself by cuGetProcAddress.
 * The library launches in both ways, prints the number of launches, and stays until its input ends.
 */
#define WAY_PROC_ADDRESS
#include "driver.h"

enum { LAUNCHES = 100, BYTES = 1 << 20 };

CUresult cuInit(unsigned flags);
CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes);
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **params, void **extra);

void run(void);
void run(void) {
    CUdeviceptr linked, looked_up;
    CHECK(cuInit(0));
    open_context();
    CUfunction kernel = load_kernel("empty");
    for (int i = 0; i < LAUNCHES; i++) {
        CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        CHECK(cu(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    }
    CHECK(cuMemAlloc_v2(&linked, BYTES));
    CHECK(cu(cuMemAlloc_v2)(&looked_up, BYTES));
    CHECK(cu(cuCtxSynchronize)());
    printf("{\"kernel_launches\": %d, \"bytes\": %d}\n", 2 * LAUNCHES, 2 * BYTES);
    wait_for_end_of_input();
}
