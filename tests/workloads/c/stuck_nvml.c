/* Preloaded into a program that loads NVML: a query for a GPU's processes prints a line and waits
 * for ever, as with a driver that hangs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static const char LISTS[] = "nvmlDeviceGetComputeRunningProcesses";

static _Noreturn void never(void) {
    static const char TOLD[] = "NVML is asked in vain\n";
    (void)!write(2, TOLD, sizeof TOLD - 1);
    for (;;) pause();
}

void *dlsym(void *handle, const char *name) {
    void *(*real)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return strncmp(name, LISTS, sizeof LISTS - 1) == 0 ? (void *)never : real(handle, name);
}
