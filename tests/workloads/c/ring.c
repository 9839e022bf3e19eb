/* ring: a job with a rank on each of the first GPUs, whose kernels spin until the kernels of all
 * ranks have begun.
 *
 *   ring [--kernel NAME] [--local NAME] [--gpus N] [--depth N] [--rank R]
 *
 * One thread for each GPU launches kernels of one name until the process is killed. By the name the
 * simulated GPU knows how many kernels meet. With --local each thread launches a kernel of that
 * name before each of these kernels. Each thread makes --depth rounds before each wait. With --rank
 * the process is only that rank. Prints the rounds of its first rank about every 10 ms.
 */
#include "driver.h"
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { MAX_RANKS = 16, PROGRESS_NS = 10 * 1000 * 1000 };

static const char *name = "ring", *local;
static long depth = 1;
static int first_rank;

static void *run(void *argument) {
    int rank = (int)(long)argument;
    CUdevice device;
    CUcontext context;
    CHECK(cu(cuDeviceGet)(&device, rank));
    CHECK(cu(cuCtxCreate_v2)(&context, CU_CTX_SCHED_AUTO, device));
    CUfunction kernel = load_kernel(name), own = local ? load_kernel(local) : NULL;
    CUstream stream = new_stream();
    if (rank == first_rank) {
        say("ready");
    }
    long long last_progress = now_ns();
    for (long rounds = 0;; rounds += depth) {
        for (long i = 0; i < depth; i++) {
            if (own) CHECK(launch_on(own, stream));
            CHECK(launch_on(kernel, stream));
        }
        CHECK(cu(cuStreamSynchronize)(stream));
        if (rank == first_rank && now_ns() - last_progress >= PROGRESS_NS) {
            last_progress = now_ns();
            printf("%ld\n", rounds + depth);
            fflush(stdout);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    long gpus = 2, only = -1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--kernel")) name = argv[i + 1];
        else if (!strcmp(argv[i], "--local")) local = argv[i + 1];
        else if (!strcmp(argv[i], "--gpus")) gpus = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--depth")) depth = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--rank")) only = atol(argv[i + 1]);
        else {
            fprintf(stderr, "ring: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    if (gpus < 1 || gpus > MAX_RANKS || depth < 1 || only >= gpus) {
        fprintf(stderr, "ring: 1 to %d GPUs, at least one launch before a wait\n", MAX_RANKS);
        return 2;
    }
    load_driver();
    CHECK(cu(cuInit)(0));
    if (only >= 0) {
        first_rank = (int)only;
        run((void *)only);
    }
    pthread_t threads[MAX_RANKS];
    for (long rank = 0; rank < gpus; rank++)
        pthread_create(&threads[rank], NULL, run, (void *)rank);
    for (long rank = 0; rank < gpus; rank++)
        pthread_join(threads[rank], NULL);
    return 0;
}
