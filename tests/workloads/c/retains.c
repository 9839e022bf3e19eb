/* retains: two threads retain primary contexts. `retains same`: the second that of the same GPU, once the first has had it made. `retains other`: that of another GPU, at
 * the same time. Prints `CODE CODE APART`: both answers, and by how many ms the ends of the calls are apart. Then it waits for its input's end. */
#include "driver.h"
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { MS_NS = 1000000 };

struct retainer {
    CUdevice device;
    CUresult code;
    struct timespec end;
};

static void *retain(void *argument) {
    struct retainer *retainer = argument;
    CUcontext context;
    retainer->code = cu(cuDevicePrimaryCtxRetain)(&context, retainer->device);
    clock_gettime(CLOCK_MONOTONIC, &retainer->end);
    return NULL;
}

static long long ns(struct timespec time) {
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int count, char **words) {
    load_driver();
    CHECK(cu(cuInit)(0));
    int same = count > 1 && !strcmp(words[1], "same");
    struct retainer first = {.device = 0}, second = {.device = same ? 0 : 1};
    pthread_t thread;
    if (pthread_create(&thread, NULL, retain, &first)) return 2;
    if (same) {
        unsigned flags;
        int is_active = 0;
        while (!is_active) CHECK(cu(cuDevicePrimaryCtxGetState)(0, &flags, &is_active));
    }
    retain(&second);
    pthread_join(thread, NULL);
    long long apart = (ns(second.end) - ns(first.end)) / MS_NS;
    printf("%d %d %lld\n", first.code, second.code, apart < 0 ? -apart : apart);
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
