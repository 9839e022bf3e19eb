/* A naive hook library. Each value of NAIVE selects a mistake that a published interposer made. The
 * tests in tests/e2e/tests/known_failures.rs show that the mistake breaks a client (hazards.c), and
 * that deepres does not break it.
 *
 * The library intercepts the client's look-ups of driver functions and returns its own functions
 * instead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;
typedef void *(*finder)(void *, const char *);

static const char *mistake(void) {
    const char *chosen = getenv("NAIVE");
    return chosen ? chosen : "";
}

static int is(const char *name) { return strcmp(mistake(), name) == 0; }

static finder real_dlsym(void) {
    finder real = NULL;
    *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real;
}

/* Returns the driver's own function, without the client's knowledge. */
static void *driver(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? real_dlsym()(library, name) : NULL;
}
#define DRIVER(name, parameters) ((int (*) parameters)driver(name))

static void *real_launch, *real_launch_ex, *real_alloc, *real_free, *real_create, *real_count, *real_info, *real_get,
    *real_init;

/* -- launches: `markers`, `pooled-events`, `naming`, `looks`, `legacy-markers` -- */

static void *event;

/* Queries the marker again and again, as a metering thread would. */
static void *looker(void *context) {
    DRIVER("cuCtxSetCurrent", (void *))(context);
    for (;;) {
        DRIVER("cuEventQuery", (void *))(event);
        usleep(500);
    }
    return NULL;
}

static int look_from_a_thread(void *stream) {
    static atomic_int started;
    pthread_t thread;
    void *context = NULL;
    if (atomic_exchange(&started, 1)) return 0;
    int code = DRIVER("cuEventCreate", (void **, unsigned))(&event, 0);
    if (!code) code = DRIVER("cuEventRecord", (void *, void *))(event, stream);
    if (!code) code = DRIVER("cuCtxGetCurrent", (void **))(&context);
    if (!code) pthread_create(&thread, NULL, looker, context);
    return code;
}

static int launch(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                  void *stream, void **params, void **extra) {
    int (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        (int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))
            real_launch;
    if (is("naming")) {
        const char *name = NULL;
        DRIVER("cuFuncGetName", (const char **, void *))(&name, f);
    }
    if (is("looks")) {
        int code = look_from_a_thread(stream);
        if (code) return code;
    }
    if (is("legacy-markers")) {
        /* The legacy stream waits for all others, so one marker there seems to suffice. */
        int code = event ? 0 : DRIVER("cuEventCreate", (void **, unsigned))(&event, 0);
        if (!code) code = DRIVER("cuEventRecord", (void *, void *))(event, NULL);
        if (code) return code;
    }
    if (is("markers") || is("pooled-events")) {
        /* Records a marker before every launch, whatever the stream is doing. The event is kept for
         * good. */
        int code = event ? 0 : DRIVER("cuEventCreate", (void **, unsigned))(&event, 0);
        if (!code) code = DRIVER("cuEventRecord", (void *, void *))(event, stream);
        if (!code && is("markers")) DRIVER("cuEventQuery", (void *))(event);
        if (code) return code;
    }
    return real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

/* -- `null`: reads the arguments without checks -- */

struct config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
};

static atomic_int used_streams;

static int launch_ex(const struct config *config, void *f, void **params, void **extra) {
    if (config->stream) atomic_fetch_add(&used_streams, 1);
    return ((int (*)(const struct config *, void *, void **, void **))real_launch_ex)(config, f, params, extra);
}

/* -- memory: `managed`, `underflow`, `shared-lock`, `no-context` -- */

static size_t held;
enum { LIMIT = 1 << 30 };

/* A lock in a file that all processes share. The lock is a flag that a dying process leaves set. */
static atomic_int *shared_flag(void) {
    static atomic_int *flag;
    if (!flag) {
        int file = open(getenv("NAIVE_FILE"), O_RDWR | O_CREAT, 0600);
        if (file < 0 || ftruncate(file, 4096)) abort();
        flag = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    return flag;
}

static int alloc(CUdeviceptr *at, size_t bytes) {
    if (is("managed")) return DRIVER("cuMemAllocManaged", (CUdeviceptr *, size_t, unsigned))(at, bytes, 1);
    if (is("shared-lock"))
        while (atomic_exchange(shared_flag(), 1)) usleep(100);
    int code = ((int (*)(CUdeviceptr *, size_t))real_alloc)(at, bytes);
    if (!code) held += bytes;
    if (is("shared-lock")) atomic_store(shared_flag(), 0);
    return code;
}

static int release(CUdeviceptr at) {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    DRIVER("cuMemGetAddressRange_v2", (CUdeviceptr *, size_t *, CUdeviceptr))(&base, &bytes, at);
    int code = ((int (*)(CUdeviceptr))real_free)(at);
    if (!code) held -= bytes;
    return code;
}

static int info(size_t *free_bytes, size_t *total_bytes) {
    int code = ((int (*)(size_t *, size_t *))real_info)(free_bytes, total_bytes);
    if (!code) {
        *total_bytes = LIMIT;
        *free_bytes = held > LIMIT ? 0 : LIMIT - held;
    }
    return code;
}

static int create(unsigned long long *handle, size_t bytes, const void *properties, unsigned long long flags) {
    int device;
    int code = DRIVER("cuCtxGetDevice", (int *))(&device);
    if (code) return code;
    return ((int (*)(unsigned long long *, size_t, const void *, unsigned long long))real_create)(handle, bytes, properties,
                                                                                                 flags);
}

/* -- `thread`: a lock in the process that a thread of this library holds most of the time -- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *keeper(void *unused) {
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        usleep(20000);
        pthread_mutex_unlock(&lock);
        usleep(10);
    }
    return NULL;
}

static int count(int *devices) {
    static atomic_int started;
    pthread_t thread;
    if (!atomic_exchange(&started, 1)) {
        pthread_create(&thread, NULL, keeper, NULL);
        usleep(5000);
    }
    pthread_mutex_lock(&lock);
    int code = ((int (*)(int *))real_count)(devices);
    pthread_mutex_unlock(&lock);
    return code;
}

/* -- `boot-lock`: one process at a time initialises -- */

static int init(unsigned flags) {
    while (atomic_exchange(shared_flag(), 1)) usleep(100);
    int code = ((int (*)(unsigned))real_init)(flags);
    atomic_store(shared_flag(), 0);
    return code;
}

/* -- look-ups: `by-name`, `detour` -- */

static int context_v2(void **context, unsigned flags, int device) {
    return DRIVER("cuCtxCreate_v2", (void **, unsigned, int))(context, flags, device);
}

static int get(const char *name, void **found, int version, unsigned long long flags, int *status) {
    int code =
        ((int (*)(const char *, void **, int, unsigned long long, int *))real_get)(name, found, version, flags, status);
    if (code) return code;
    if (is("by-name") && strcmp(name, "cuCtxCreate") == 0) *found = (void *)context_v2;
    if (is("detour") && strcmp(name, "cuLaunchKernel") == 0) {
        /* Replaces the address of the per-thread variant by a hook that calls the other variant. */
        real_launch = driver("cuLaunchKernel");
        *found = (void *)launch;
    }
    return code;
}

/* -- dlsym: `prefix`, `lock`, `itself` -- */

static int anything(void) { return 0; }

static void initialise(void) {
    static atomic_int done;
    if (!atomic_exchange(&done, 1)) dlopen("libm.so.6", RTLD_NOW);
}

static const struct {
    const char *mistake, *name;
    void **real;
    void *hook;
} hooks[] = {
    {"markers", "cuLaunchKernel", &real_launch, (void *)launch},
    {"pooled-events", "cuLaunchKernel", &real_launch, (void *)launch},
    {"naming", "cuLaunchKernel", &real_launch, (void *)launch},
    {"looks", "cuLaunchKernel", &real_launch, (void *)launch},
    {"legacy-markers", "cuLaunchKernel", &real_launch, (void *)launch},
    {"boot-lock", "cuInit", &real_init, (void *)init},
    {"null", "cuLaunchKernelEx", &real_launch_ex, (void *)launch_ex},
    {"managed", "cuMemAlloc_v2", &real_alloc, (void *)alloc},
    {"shared-lock", "cuMemAlloc_v2", &real_alloc, (void *)alloc},
    {"underflow", "cuMemAlloc_v2", &real_alloc, (void *)alloc},
    {"underflow", "cuMemFree_v2", &real_free, (void *)release},
    {"underflow", "cuMemGetInfo_v2", &real_info, (void *)info},
    {"no-context", "cuMemCreate", &real_create, (void *)create},
    {"thread", "cuDeviceGetCount", &real_count, (void *)count},
    {"by-name", "cuGetProcAddress_v2", &real_get, (void *)get},
    {"detour", "cuGetProcAddress_v2", &real_get, (void *)get},
};

void *dlsym(void *restrict handle, const char *restrict name) {
    if (is("itself")) {
        finder real = NULL;
        *(void **)&real = dlsym(RTLD_NEXT, "dlsym");
        return real(handle, name);
    }
    if (is("lock")) {
        pthread_mutex_lock(&lock);
        initialise();
        pthread_mutex_unlock(&lock);
    }
    void *found = real_dlsym()(handle, name);
    if (found && is("prefix") && strncmp(name, "cu", 2) == 0) return (void *)anything;
    for (size_t i = 0; found && i < sizeof hooks / sizeof *hooks; i++)
        if (is(hooks[i].mistake) && strcmp(name, hooks[i].name) == 0) {
            *hooks[i].real = found;
            return hooks[i].hook;
        }
    return found;
}
