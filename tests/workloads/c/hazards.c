/* hazards WHAT [LIBRARY]: does things that have broken interposers, and prints the driver's
 * results. The output must be the same under any interposer. SIGALRM ends the program if it hangs.
 */
#define _GNU_SOURCE
#include "driver.h"
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Longer than anything here takes without a hang, even on a busy machine. */
enum { PATIENCE_S = 12 };

static void *extra(const char *name) {
    void *found = dlsym(open_driver(), name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

typedef CUresult (*looker)(const char *, void **, int, unsigned long long, int *);

/* Since CUDA 13 the function that creates a context has four parameters. */
static void by_abi(void) {
    looker get = (looker)extra("cuGetProcAddress_v2");
    CUresult (*create)(CUcontext *, void *, unsigned, CUdevice) = NULL;
    CUcontext context;
    int status;
    enum { CU_CTX_SCHED_BLOCKING_SYNC = 4 };
    load_driver();
    CHECK(cu(cuInit)(0));
    CHECK(get("cuCtxCreate", (void **)&create, 13000, 0, &status));
    printf("cuCtxCreate of CUDA 13: %d\n", create(&context, NULL, CU_CTX_SCHED_BLOCKING_SYNC, 0));
}

static int launch_thrice(CUfunction kernel, CUstream stream, unsigned pause_us) {
    int code = 0;
    for (int i = 0; i < 3 && !code; i++) {
        if (pause_us) usleep(pause_us);
        code = launch_on(kernel, stream);
    }
    return code;
}

/* Ends a capture in which launches returned `code`. */
static void end_capture(CUstream stream, int code) {
    CUgraph graph = NULL;
    size_t nodes = 0;
    int end = cu(cuStreamEndCapture)(stream, &graph);
    if (!end) CHECK(cu(cuGraphGetNodes)(graph, NULL, &nodes));
    printf("launched %d, captured %d, %zu nodes\n", code, end, nodes);
}

/* Stream 0 of a per-thread variant means this thread's own stream. */
static void per_thread(void) {
    looker get = (looker)extra("cuGetProcAddress_v2");
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                       void **) = NULL;
    int status;
    open_context();
    CUfunction kernel = load_kernel("quick");
    CHECK(get("cuLaunchKernel", (void **)&launch, 12000, PTDS, &status));
    CUstream own = (CUstream)2;
    CHECK(cu(cuStreamBeginCapture_v2)(own, CU_STREAM_CAPTURE_MODE_RELAXED));
    end_capture(own, launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static int begun[2];

static void *look_meanwhile(void *unused) {
    char byte;
    (void)unused;
    return read(begun[0], &byte, 1) == 1 ? dlsym(RTLD_DEFAULT, "getpid") : NULL;
}

/* Calls dlsym while another thread calls it inside a library's constructor (constructor.c). */
static void constructor(const char *library) {
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

/* Captures slowly on one stream, which waits for the legacy stream or not, depending on `flags`. */
static void capture_slowly(unsigned flags, int mode) {
    enum { PAUSE_US = 20000 };
    CUgraph graph = NULL;
    CUstream stream;
    open_context();
    CUfunction kernel = load_kernel("quick");
    CHECK(cu(cuStreamCreate)(&stream, flags));
    CHECK(launch_on(kernel, stream));
    CHECK(cu(cuStreamBeginCapture_v2)(stream, mode));
    end_capture(stream, launch_thrice(kernel, stream, PAUSE_US));
    CHECK(cu(cuStreamBeginCapture_v2)(stream, mode));
    int code = launch_on(kernel, NULL);
    printf("on the legacy stream %d, captured %d\n", code, cu(cuStreamEndCapture)(stream, &graph));
}

static void capture_meanwhile(void) { capture_slowly(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL); }

static void capture_blocking(void) { capture_slowly(0, CU_STREAM_CAPTURE_MODE_RELAXED); }

/* Launches from a library that binds to the driver itself. */
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

static void bound(const char *path) { launch_by(dlopen(path, RTLD_NOW)); }

static void deepbound(const char *path) { launch_by(dlopen(path, RTLD_NOW | RTLD_DEEPBIND)); }

static void elsewhere(const char *path) { launch_by(dlmopen(LM_ID_NEWLM, path, RTLD_NOW)); }

static void contexts(void) {
    for (int i = 0; i < 3; i++) {
        CUcontext context;
        CHECK(cu(cuInit)(0));
        CHECK(cu(cuCtxCreate_v2)(&context, 0, 0));
        CUfunction kernel = load_kernel("quick");
        int code = launch_on(kernel, NULL);
        printf("launched %d, waited %d\n", code, cu(cuCtxSynchronize)());
        CHECK(cu(cuCtxDestroy_v2)(context));
    }
}

static void launches(void) {
    CUstream stream;
    open_context();
    CUfunction kernel = load_kernel("quick");
    CHECK(cu(cuStreamCreate)(&stream, 0));
    int failed = 0;
    for (int i = 0; i < 1000; i++) failed += launch_on(kernel, i % 2 ? stream : NULL) != 0;
    printf("failed: %d, waited %d\n", failed, cu(cuCtxSynchronize)());
}

static void without_context(void) {
    CUmemHandle handle;
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CHECK(cu(cuInit)(0));
    printf("created %d\n", cu(cuMemCreate)(&handle, 2 << 20, &properties, 0));
    properties.location.id = 12345;
    CUmemHandle none;
    printf("on no device %d\n", cu(cuMemCreate)(&none, 2 << 20, &properties, 0));
    printf("released %d\n", cu(cuMemRelease)(handle));
}

static void unknown_frees(void) {
    CUdeviceptr at;
    size_t free_bytes, total_bytes;
    open_context();
    for (int i = 0; i < 8; i++) {
        CHECK(cu(cuMemAllocAsync)(&at, 32 << 20, NULL));
        CHECK(cu(cuMemFree_v2)(at));
    }
    int stale = cu(cuMemFree_v2)(at), never = cu(cuMemFree_v2)(0x123456789000);
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
    printf("a second time %d, never allocated %d, some is held: %d\n", stale, never,
           free_bytes != 0 && free_bytes <= total_bytes);
}

static void nulls(void) {
    open_context();
    CUfunction kernel = load_kernel("quick");
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    printf("no configuration %d\n", cu(cuLaunchKernelEx)(NULL, kernel, NULL, NULL));
    printf("an empty one %d\n", cu(cuLaunchKernelEx)(&config, kernel, NULL, NULL));
    printf("no kernel %d\n", launch_on(NULL, NULL));
    printf("no place %d %d %d\n", cu(cuMemAlloc_v2)(NULL, 512), cu(cuMemAllocAsync)(NULL, 512, NULL),
           cu(cuMemGetInfo_v2)(NULL, NULL));
    printf("no properties %d\n", cu(cuMemCreate)(NULL, 2 << 20, NULL, 0));
    printf("no list %d\n", cu(cuLaunchCooperativeKernelMultiDevice)(NULL, 3, 0));
    printf("no graph %d\n", cu(cuGraphLaunch)(NULL, NULL));
    printf("nothing %d\n", cu(cuMemFree_v2)(0));
}

typedef struct {
    int id;
    char padding[4];
    union {
        struct {
            CUdeviceptr at;
            size_t bytes;
            float hit_ratio;
            int hit, miss;
        } window;
        struct {
            CUevent event;
            int flags, at_block_start;
        } event;
        unsigned char map[2];
        unsigned extents[3];
        int number;
        char room[64];
    };
} attribute;

enum { ACCESS_POLICY_WINDOW = 1, CLUSTER = 4, PROGRAMMATIC_EVENT = 7, MEMORY_DOMAIN_MAP = 9, PREFERRED_CLUSTER = 11, COMPLETION_EVENT = 12 };

static CUresult launch_with(CUfunction kernel, CUstream stream, attribute *attributes, unsigned count) {
    CUlaunchConfig config = {{4, 1, 1}, {32, 1, 1}, 0, stream, attributes, count};
    return cu(cuLaunchKernelEx)(&config, kernel, NULL, NULL);
}

/* This thread and another stream wait for an event that a launch records. Neither wait may end
 * before the launch does. */
static int await_recorded(CUfunction kernel, attribute *recorded, volatile int *flag, CUdeviceptr flag_at) {
    CUresult (*synchronize)(CUevent) = (CUresult(*)(CUevent))extra("cuEventSynchronize");
    CUresult (*query)(CUstream) = (CUresult(*)(CUstream))extra("cuStreamQuery");
    CUstream stream, other;
    stream = new_stream();
    other = new_stream();
    *flag = 0;
    CHECK(cu(cuStreamWaitValue32_v2)(stream, flag_at, 1, CU_STREAM_WAIT_VALUE_EQ));
    int code = launch_with(kernel, stream, recorded, 1);
    CHECK(cu(cuStreamWaitEvent)(other, recorded->event.event, 0));
    printf("event of %d: before %d %d, ", recorded->id, cu(cuEventQuery)(recorded->event.event), query(other));
    *flag = 1;
    int waited = synchronize(recorded->event.event), other_waited = cu(cuStreamSynchronize)(other);
    printf("after %d %d\n", waited, other_waited);
    return code;
}

/* Tries each attribute of a launch with a sensible value. Also tries the attribute that means none,
 * and two attributes that no driver knows. */
static void attributes(void) {
    enum { ATTRIBUTES = 20, WINDOW_BYTES = 1 << 20, PERSISTING = 2, STREAMING = 1 };
    CUdeviceptr window, flag_at;
    CUevent timed, event;
    CUgraph graph;
    void *flag;
    attribute list[2];
    int launched = 0;
    open_context();
    CUfunction kernel = load_kernel("quick");
    CHECK(cu(cuMemAlloc_v2)(&window, WINDOW_BYTES));
    CHECK(cu(cuMemHostAlloc)(&flag, sizeof(int), CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(cu(cuMemHostGetDevicePointer_v2)(&flag_at, flag, 0));
    CHECK(cu(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cu(cuEventCreate)(&timed, 0));
    CUstream stream = new_stream();
    for (int id = 0; id <= ATTRIBUTES; id++) {
        int code, is_event = id == PROGRAMMATIC_EVENT || id == COMPLETION_EVENT;
        unsigned count = 1;
        memset(list, 0, sizeof list);
        list[0].id = id < ATTRIBUTES ? id : 12345;
        list[0].number = 1;
        if (id == ACCESS_POLICY_WINDOW) {
            list[0].window.at = window;
            list[0].window.bytes = WINDOW_BYTES;
            list[0].window.hit_ratio = 1;
            list[0].window.hit = PERSISTING;
            list[0].window.miss = STREAMING;
        }
        if (id == CLUSTER || id == PREFERRED_CLUSTER) {
            list[0].extents[0] = id == CLUSTER ? 2 : 4;
            list[0].extents[1] = list[0].extents[2] = 1;
            list[1] = list[0];
            list[1].id = CLUSTER;
            list[1].extents[0] = 2;
            count = 2;
        }
        if (id == MEMORY_DOMAIN_MAP) list[0].map[1] = 1;
        if (is_event) {
            memset(&list[0].room, 0, sizeof list[0].room);
            list[0].event.event = event;
        }
        code = is_event ? await_recorded(kernel, list, flag, flag_at) : launch_with(kernel, stream, list, count);
        printf("attribute %d: %d\n", list[0].id, code);
        launched += !code;
        if (id == PREFERRED_CLUSTER) {
            list[0].extents[0] = 3;
            printf("no multiple: %d\n", launch_with(kernel, stream, list, count));
        }
        if (is_event) {
            list[0].event.event = timed;
            printf("timed: %d, ", launch_with(kernel, stream, list, 1));
            list[0].event.event = NULL;
            printf("none: %d\n", launch_with(kernel, stream, list, 1));
        }
    }
    CHECK(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    memset(list, 0, sizeof list);
    list[0].id = COMPLETION_EVENT;
    list[0].event.event = event;
    printf("an event in a capture: %d\n", launch_with(kernel, stream, list, 1));
    CHECK(cu(cuStreamEndCapture)(stream, &graph));
    printf("launched %d, waited %d\n", launched, cu(cuCtxSynchronize)());
}

static void forked(void) {
    int devices, status;
    CHECK(cu(cuInit)(0));
    CHECK(cu(cuDeviceGetCount)(&devices));
    fflush(stdout);
    /* Gives threads of preloaded libraries time to run. */
    usleep(5000);
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_S / 2);
        printf("child %d\n", cu(cuDeviceGetCount)(&devices));
        exit(0);
    }
    waitpid(child, &status, 0);
    printf("it ended with %d\n", status);
}

static void device_memory(void) {
    CUresult (*attribute)(void *, int, CUdeviceptr) = (CUresult(*)(void *, int, CUdeviceptr))extra("cuPointerGetAttribute");
    enum { CU_POINTER_ATTRIBUTE_IS_MANAGED = 8 };
    unsigned is_managed = 9;
    CUdeviceptr at;
    open_context();
    CHECK(cu(cuMemAlloc_v2)(&at, 1 << 20));
    CHECK(attribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
    printf("managed: %u\n", is_managed);
}

static void allocate(void) {
    CUdeviceptr at;
    open_context();
    printf("allocated %d\n", cu(cuMemAlloc_v2)(&at, 1 << 20));
}

/* A context lives until its last user has detached, with everything in it. */
static void attached(void) {
    CUresult (*attach)(CUcontext *, unsigned) = (CUresult(*)(CUcontext *, unsigned))extra("cuCtxAttach");
    CUresult (*detach)(CUcontext) = (CUresult(*)(CUcontext))extra("cuCtxDetach");
    enum { PART_BYTES = 1 << 30 };
    CUcontext context, again;
    CUdeviceptr at;
    context = open_context();
    CUfunction kernel = load_kernel("quick");
    CHECK(launch_on(kernel, NULL));
    CHECK(cu(cuMemAlloc_v2)(&at, PART_BYTES));
    CHECK(attach(&again, 0));
    printf("the same: %d, left: %d\n", again == context, detach(context));
    int failed = 0;
    for (int i = 0; i < 1000; i++) failed += launch_on(kernel, NULL) != 0;
    printf("launches that failed: %d, waited %d\n", failed, cu(cuCtxSynchronize)());
    fflush(stdout);
    getchar();
    int last = detach(context);
    printf("left for good: %d, once more: %d\n", last, detach(context) != 0);
    fflush(stdout);
    getchar();
}

/* Captures launches on a stream. If `destroys` is set, the client first tries to destroy the
 * captured stream. */
static void capture_once(int destroys) {
    open_context();
    CUfunction kernel = load_kernel("quick");
    CUstream stream = new_stream();
    CHECK(launch_on(kernel, stream));
    CHECK(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (destroys) printf("kept %d, ", cu(cuStreamDestroy_v2)(stream));
    end_capture(stream, launch_thrice(kernel, stream, 0));
}

static void capture(void) { capture_once(0); }

/* If a stream could not be destroyed, it can still be captured (SIMGPU_FAULTS makes the first
 * destruction fail). */
static void kept_stream(void) { capture_once(1); }

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } hazards[] = {
        {"abi", by_abi},        {"per-thread", per_thread},         {"capture", capture},
        {"contexts", contexts}, {"launches", launches},             {"without-context", without_context},
        {"nulls", nulls},       {"unknown-frees", unknown_frees},   {"forked", forked},
        {"allocate", allocate}, {"device-memory", device_memory},
        {"capture-meanwhile", capture_meanwhile},
        {"capture-blocking", capture_blocking},
        {"attributes", attributes},
        {"attached", attached}, {"kept-stream", kept_stream},
    };
    static const struct {
        const char *name;
        void (*run)(const char *library);
    } with_library[] = {{"constructor", constructor}, {"bound", bound}, {"deepbound", deepbound}, {"elsewhere", elsewhere}};
    alarm(PATIENCE_S);
    for (size_t i = 0; argc == 3 && i < sizeof with_library / sizeof *with_library; i++)
        if (strcmp(argv[1], with_library[i].name) == 0) {
            with_library[i].run(argv[2]);
            return 0;
        }
    for (size_t i = 0; argc == 2 && i < sizeof hazards / sizeof *hazards; i++)
        if (strcmp(argv[1], hazards[i].name) == 0) {
            load_driver();
            hazards[i].run();
            return 0;
        }
    fprintf(stderr, "usage: hazards WHAT [LIBRARY]\n");
    return 2;
}
