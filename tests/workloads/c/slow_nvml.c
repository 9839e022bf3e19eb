/* Preloaded into a program that loads NVML: each list of a GPU's processes takes NVML_MS longer, as
 * with a busy driver. If NVML_AWAITS is set, no list comes before the file of that name exists. If
 * neither is set, each query prints a line and waits for ever, as with a driver that hangs. If
 * NVML_INITS is set, only so many calls of nvmlInit return. Each later call prints a line with the
 * name of its thread and waits for ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MS_US = 1000, THREAD_NAME_BYTES = 16 };

static const char LISTS[] = "nvmlDeviceGetComputeRunningProcesses";

static void wait(void) {
    const char *ms = getenv("NVML_MS"), *file = getenv("NVML_AWAITS");
    if (!ms && !file) {
        static const char TOLD[] = "NVML is asked in vain\n";
        (void)!write(2, TOLD, sizeof TOLD - 1);
        for (;;) pause();
    }
    if (ms) usleep((useconds_t)atoi(ms) * MS_US);
    while (file && access(file, F_OK)) usleep(MS_US);
}

/* One pair for each version of the function. */
#define LIST(version)                                             \
    static int (*real_##version)(void *, unsigned *, void *);     \
    static int version(void *gpu, unsigned *count, void *infos) { \
        wait();                                                   \
        return real_##version(gpu, count, infos);                 \
    }
LIST(v1) LIST(v2) LIST(v3)

static int (*real_init)(void);

static int init(void) {
    static atomic_int inits;
    const char *most = getenv("NVML_INITS");
    if (most && atomic_fetch_add(&inits, 1) >= atoi(most)) {
        char thread[THREAD_NAME_BYTES];
        prctl(PR_GET_NAME, thread);
        dprintf(2, "%s initialises NVML in vain\n", thread);
        for (;;) pause();
    }
    return real_init();
}

void *dlsym(void *handle, const char *name) {
    void *(*real)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real(handle, name);
    if (found && !strcmp(name, "nvmlInit_v2")) {
        real_init = (int (*)(void))found;
        return (void *)init;
    }
    if (!found || strncmp(name, LISTS, sizeof LISTS - 1)) return found;
    const char *version = name + sizeof LISTS - 1;
#define INSTEAD(own, suffix) \
    if (!strcmp(version, suffix)) { real_##own = (int (*)(void *, unsigned *, void *))found; return (void *)own; }
    INSTEAD(v1, "") INSTEAD(v2, "_v2") INSTEAD(v3, "_v3")
    return found;
}
