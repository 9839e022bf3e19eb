/* plugins constructor LIBRARY: loads a library that calls dlsym in its constructor (constructor.c),
 * while another thread calls dlsym.
 * plugins bound|deepbound|elsewhere LIBRARY: launches from a library that calls the driver itself:
 * as usual, with RTLD_DEEPBIND, or in a linker namespace of its own. Prints the number of failed
 * launches, and stays until a line comes in. */
#define _GNU_SOURCE
#include "driver.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* Longer than anything here takes without a hang, even on a busy machine. */
enum { PATIENCE_S = 12 };

static int begun[2];

static void *look_meanwhile(void *unused) {
    char byte;
    (void)unused;
    return read(begun[0], &byte, 1) == 1 ? dlsym(RTLD_DEFAULT, "getpid") : NULL;
}

static void look_up_twice(const char *library) {
    pthread_t thread;
    char number[16];
    if (pipe(begun)) exit(1);
    snprintf(number, sizeof number, "%d", begun[1]);
    setenv("CONSTRUCTOR_PIPE", number, 1);
    pthread_create(&thread, NULL, look_meanwhile, NULL);
    if (!dlopen(library, RTLD_NOW)) printf("%s\n", dlerror());
    pthread_join(thread, NULL);
    load_driver();
    CHECK(cu(cuInit)(0));
}

static void launch_by(void *library) {
    int (*launch)(void *, int) = library ? (int (*)(void *, int))dlsym(library, "launch_some") : NULL;
    if (!launch) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    load_driver();
    open_context();
    printf("failed: %d\n", launch(load_kernel("quick"), 100));
    printf("waited: %d\n", cu(cuCtxSynchronize)());
    fflush(stdout);
    getchar();
}

int main(int argc, char **argv) {
    const char *how = argc == 3 ? argv[1] : "";
    alarm(PATIENCE_S);
    if (!strcmp(how, "constructor")) look_up_twice(argv[2]);
    else if (!strcmp(how, "bound")) launch_by(dlopen(argv[2], RTLD_NOW));
    else if (!strcmp(how, "deepbound")) launch_by(dlopen(argv[2], RTLD_NOW | RTLD_DEEPBIND));
    else if (!strcmp(how, "elsewhere")) launch_by(dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW));
    else usage(0, "plugins constructor|bound|deepbound|elsewhere LIBRARY");
    return 0;
}
