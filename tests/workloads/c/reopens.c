/* reopens base|namespace [cuda]: queries the memory by NVML, closes NVML, opens it again, and
 * queries again. The second time the program uses the same function and one that it has not used
 * before. In between it occupies NVML's former addresses, if they are free. With `cuda` it
 * initialises the driver first. Prints the total of each answer, MiB. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static int is_apart;

static void *open_library(void) {
    static const char name[] = "libnvidia-ml.so.1";
    return is_apart ? dlmopen(LM_ID_NEWLM, name, RTLD_LAZY) : dlopen(name, RTLD_LAZY | RTLD_LOCAL);
}

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) printf("no %s\n", name);
    return found;
}

/* Occupies every address that the library had, unless something else is there. */
static void take_places(const char *name, unsigned long from, unsigned long to) {
    if (from && !dlopen(name, RTLD_LAZY | RTLD_NOLOAD))
        mmap((void *)from, to - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

static void ask(int is_again) {
    void *library = open_library(), *device;
    if (!library) {
        printf("%s\n", dlerror());
        return;
    }
    int (*init)(void), (*shutdown)(void), (*handle)(unsigned, void **), (*info)(void *, struct memory *), (*info_v2)(void *, struct memory_v2 *);
    *(void **)&init = find(library, "nvmlInit_v2");
    *(void **)&shutdown = find(library, "nvmlShutdown");
    *(void **)&handle = find(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&info = find(library, "nvmlDeviceGetMemoryInfo");
    struct memory memory = {0};
    struct memory_v2 memory_v2 = {.version = sizeof memory_v2 | 2 << 24};
    if (init() || handle(0, &device) || info(device, &memory)) printf("NVML failed\n");
    printf("%llu\n", memory.total >> 20);
    fflush(stdout);
    if (is_again) {
        *(void **)&info_v2 = find(library, "nvmlDeviceGetMemoryInfo_v2");
        if (info_v2(device, &memory_v2)) printf("NVML failed\n");
        printf("%llu\n", memory_v2.total >> 20);
        fflush(stdout);
    }
    shutdown();
    dlclose(library);
}

/* Finds the first and the last address of the library. */
static void places(unsigned long *from, unsigned long *to) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    void *library = open_library();
    while (maps && library && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (!strstr(line, "nvidia") || sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
        if (!*from) *from = start;
        *to = end;
    }
    if (maps) fclose(maps);
    if (library) dlclose(library);
}

int main(int argc, char **argv) {
    unsigned long from = 0, to = 0;
    is_apart = argc > 1 && !strcmp(argv[1], "namespace");
    if (argc > 2) {
        int (*init)(unsigned);
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        if (!driver || !(*(void **)&init = find(driver, "cuInit")) || init(0)) return 1;
    }
    places(&from, &to);
    ask(0);
    take_places("libnvidia-ml.so.1", from, to);
    ask(1);
    return 0;
}
