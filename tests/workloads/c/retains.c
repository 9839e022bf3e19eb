/* retains [same|other]: two threads retain primary contexts. With `same` the second thread retains
 * the same GPU's context once the first thread's call has created it. With `other` it retains
 * another GPU's context at the same time.
 *
 * Prints `CODE CODE APART`: both results, and the time between the ends of the calls in ms. Then
 * the program waits for the end of its input. */
#include "driver.h"
#include <pthread.h>
#include <string.h>

struct retainer {
    CUdevice device;
    CUresult code;
    long long end_ns;
};

static void *retain(void *argument) {
    struct retainer *retainer = argument;
    CUcontext context;
    retainer->code = cu(cuDevicePrimaryCtxRetain)(&context, retainer->device);
    retainer->end_ns = now_ns();
    return NULL;
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
    long long apart = (second.end_ns - first.end_ns) / MS_NS;
    printf("%d %d %lld\n", first.code, second.code, apart < 0 ? -apart : apart);
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
