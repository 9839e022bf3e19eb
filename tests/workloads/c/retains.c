/* retains [same|other]: two threads retain primary contexts. With `same` the second thread retains
 * the same GPU's context once the first thread's call has created it. With `other` it retains
 * another GPU's context at the same time.
 *
 * Prints `CODE CODE APART`: both results, and the time between the ends of the calls in ms. Then
 * the program waits for the end of its input. */
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
