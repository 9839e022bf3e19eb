/* The part of the CUDA driver API that the C clients use, and the three ways in which a program
 * reaches it.
 *
 * A client is compiled once for each way and calls the driver as cu(cuInit)(0) in each:
 *
 *   -DWAY_LINKED        bound by the linker to libcuda.so.1
 *   -DWAY_DLSYM         dlopen("libcuda.so.1") and one dlsym for each function
 *   -DWAY_PROC_ADDRESS  one dlsym of cuGetProcAddress_v2; all other functions through it, as
 *                       libcudart does */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPool_st *CUmemoryPool;

typedef struct {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef struct CUarray_st *CUarray;

typedef struct {
    size_t width;
    size_t height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    int allocation_type;
    int handle_types;
    struct {
        int type;
        int id;
    } location;
    void *win32_attributes;
    size_t max_bytes;
    unsigned char reserved[56];
} CUmemPoolProps;

typedef struct {
    unsigned char bytes[64];
} CUipcMemHandle;

typedef struct {
    CUfunction function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    CUstream stream;
    void **params;
} CUlaunchParams;

typedef struct {
    int type;
    int requested_handle_types;
    struct {
        int type;
        int id;
    } location;
    void *win32_metadata;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
    struct {
        int type;
        int id;
    } location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    CUmemPoolProps pool;
    const CUmemAccessDesc *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr address;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    int type;
    int reserved[3];
    union {
        struct {
            CUgraph graph;
            int ownership;
        } child;
        struct {
            unsigned long long handle;
            int type;
            unsigned size;
            CUgraph *bodies;
            CUcontext context;
        } conditional;
        long long words[29];
    };
    long long reserved_too;
} CUgraphNodeParams;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CU_CTX_SCHED_AUTO = 0,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_MEMHOSTALLOC_DEVICEMAP = 2,
    CU_STREAM_WAIT_VALUE_EQ = 1,
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1,
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13,
    CU_GRAPH_COND_ASSIGN_DEFAULT = 1,
    CU_GRAPH_COND_TYPE_WHILE = 1,
    GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    GET_PROC_ADDRESS_PER_THREAD_STREAM = 2,
};

/* X(exported symbol, name, CUDA version and flags for cuGetProcAddress, parameters) */
#define LEGACY GET_PROC_ADDRESS_LEGACY_STREAM
#define PTDS GET_PROC_ADDRESS_PER_THREAD_STREAM
#define DRIVER_FUNCTIONS(X)                                                                                              \
    X(cuInit, "cuInit", 2000, LEGACY, (unsigned flags))                                                                  \
    X(cuDeviceGet, "cuDeviceGet", 2000, LEGACY, (CUdevice * device, int ordinal))                                        \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, LEGACY, (size_t * bytes, CUdevice device))                          \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, LEGACY, (CUcontext * context, unsigned flags, CUdevice device))               \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, LEGACY, (CUcontext context))                                                \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, LEGACY, (CUcontext context))                                             \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, LEGACY, (void))                                                        \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, LEGACY, (CUcontext * context, CUdevice device))        \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, LEGACY, (CUdevice device))                           \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000, LEGACY,                                                             \
      (CUlibrary * library, const void *code, void *jit_options, void *jit_values, unsigned jit_count, void *options,    \
       void *values, unsigned count))                                                                                    \
    X(cuLibraryUnload, "cuLibraryUnload", 12000, LEGACY, (CUlibrary library))                                            \
    X(cuModuleUnload, "cuModuleUnload", 2000, LEGACY, (CUmodule module))                                                 \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, LEGACY, (CUmodule * module, const void *image))                        \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, LEGACY, (CUfunction * f, CUmodule module, const char *name))     \
    X(cuStreamCreate, "cuStreamCreate", 2000, LEGACY, (CUstream * stream, unsigned flags))                               \
    X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050, LEGACY, (int *least, int *greatest))             \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, LEGACY,                                            \
      (CUstream * stream, unsigned flags, int priority))                                                                 \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, LEGACY, (CUstream stream))                                            \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, LEGACY, (CUstream stream))                                       \
    X(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, PTDS, (CUstream stream))                                    \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, LEGACY, (size_t * free_bytes, size_t *total_bytes))                         \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, LEGACY, (CUdeviceptr * ptr, size_t bytes))                                      \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, LEGACY,                                                               \
      (CUdeviceptr * ptr, size_t *pitch, size_t width, size_t height, unsigned element_bytes))                           \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, LEGACY, (CUdeviceptr * ptr, size_t bytes, unsigned flags))           \
    X(cuMemFree_v2, "cuMemFree", 3020, LEGACY, (CUdeviceptr ptr))                                                        \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, LEGACY, (CUdeviceptr * ptr, size_t bytes, CUstream stream))             \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, PTDS, (CUdeviceptr * ptr, size_t bytes, CUstream stream))          \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, LEGACY,                                                 \
      (CUdeviceptr * ptr, size_t bytes, CUmemoryPool pool, CUstream stream))                                             \
    X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, PTDS,                                              \
      (CUdeviceptr * ptr, size_t bytes, CUmemoryPool pool, CUstream stream))                                             \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, LEGACY, (CUdeviceptr ptr, CUstream stream))                               \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, PTDS, (CUdeviceptr ptr, CUstream stream))                            \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, LEGACY, (CUmemoryPool * pool, CUdevice device))     \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, LEGACY, (CUmemoryPool pool, size_t keep_bytes))                         \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, LEGACY, (CUmemoryPool pool, int attribute, void *value))    \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, LEGACY, (CUdevice device))                                    \
    X(cuArrayCreate_v2, "cuArrayCreate", 3020, LEGACY, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *descriptor))       \
    X(cuArrayDestroy, "cuArrayDestroy", 2000, LEGACY, (CUarray array))                                                   \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, LEGACY, (void **host, size_t bytes, unsigned flags))                       \
    X(cuMemHostGetDevicePointer_v2, "cuMemHostGetDevicePointer", 3020, LEGACY,                                           \
      (CUdeviceptr * device, void *host, unsigned flags))                                                                \
    X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, LEGACY, (void *host, CUdeviceptr device, size_t bytes))                     \
    X(cuStreamWriteValue32_v2, "cuStreamWriteValue32", 11070, LEGACY,                                                    \
      (CUstream stream, CUdeviceptr at, unsigned value, unsigned flags))                                                 \
    X(cuStreamWriteValue32_v2_ptsz, "cuStreamWriteValue32", 11070, PTDS,                                                 \
      (CUstream stream, CUdeviceptr at, unsigned value, unsigned flags))                                                 \
    X(cuStreamWaitValue32_v2, "cuStreamWaitValue32", 11070, LEGACY,                                                      \
      (CUstream stream, CUdeviceptr at, unsigned value, unsigned flags))                                                 \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, LEGACY,                                                        \
      (CUdeviceptr * ptr, CUipcMemHandle handle, unsigned flags))                                                        \
    X(cuMemCreate, "cuMemCreate", 10020, LEGACY,                                                                         \
      (CUmemHandle * handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags))                   \
    X(cuMemRelease, "cuMemRelease", 10020, LEGACY, (CUmemHandle handle))                                                 \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, LEGACY,                                                                    \
      (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,      \
       CUstream stream, void **params, void **extra))                                                                    \
    X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, PTDS,                                                                 \
      (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,      \
       CUstream stream, void **params, void **extra))                                                                    \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, LEGACY,                                                               \
      (const CUlaunchConfig *config, CUfunction f, void **params, void **extra))                                         \
    X(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, PTDS,                                                            \
      (const CUlaunchConfig *config, CUfunction f, void **params, void **extra))                                         \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, LEGACY,                                              \
      (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,      \
       CUstream stream, void **params))                                                                                  \
    X(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, PTDS,                                           \
      (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,      \
       CUstream stream, void **params))                                                                                  \
    X(cuFuncSetBlockShape, "cuFuncSetBlockShape", 2000, LEGACY, (CUfunction f, int x, int y, int z))                     \
    X(cuLaunch, "cuLaunch", 2000, LEGACY, (CUfunction f))                                                                \
    X(cuLaunchGrid, "cuLaunchGrid", 2000, LEGACY, (CUfunction f, int width, int height))                                 \
    X(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, LEGACY, (CUfunction f, int width, int height, CUstream stream))      \
    X(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, LEGACY,                        \
      (CUlaunchParams * list, unsigned count, unsigned flags))                                                           \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, LEGACY, (CUstream stream, int mode))                       \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, LEGACY, (CUstream stream, CUgraph * graph))                       \
    X(cuGraphCreate, "cuGraphCreate", 10000, LEGACY, (CUgraph * graph, unsigned flags))                                  \
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, LEGACY,                                                   \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params))   \
    X(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040, LEGACY,                                                     \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr ptr))                      \
    X(cuGraphAddNode_v2, "cuGraphAddNode", 12030, LEGACY,                                                                \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,                     \
       CUgraphNodeParams *params))                                                                                       \
    X(cuGraphConditionalHandleCreate, "cuGraphConditionalHandleCreate", 12030, LEGACY,                                   \
      (unsigned long long *handle, CUgraph graph, CUcontext context, unsigned value, unsigned flags))                    \
    X(cuGraphGetNodes, "cuGraphGetNodes", 10000, LEGACY, (CUgraph graph, CUgraphNode * nodes, size_t *count))            \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, LEGACY,                                         \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                                                     \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, LEGACY, (CUgraphExec exec, CUstream stream))                                \
    X(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, PTDS, (CUgraphExec exec, CUstream stream))                             \
    X(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020, LEGACY,                                                           \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                                                 \
    X(cuMemsetD8Async, "cuMemsetD8Async", 3020, LEGACY,                                                                  \
      (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))                                              \
    X(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020, LEGACY,                                                           \
      (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                                                 \
    X(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, LEGACY, (CUstream stream, void (*function)(void *), void *data))      \
    X(cuEventCreate, "cuEventCreate", 2000, LEGACY, (CUevent * event, unsigned flags))                                   \
    X(cuEventRecord, "cuEventRecord", 2000, LEGACY, (CUevent event, CUstream stream))                                    \
    X(cuEventQuery, "cuEventQuery", 2000, LEGACY, (CUevent event))                                                       \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, LEGACY, (int *mode))                \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, LEGACY, (CUstream stream, CUevent event, unsigned flags))            \
    X(cuCtxWaitEvent, "cuCtxWaitEvent", 12050, LEGACY, (CUcontext context, CUevent event))                               \
    X(cuCtxSetLimit, "cuCtxSetLimit", 3010, LEGACY, (int limit, size_t value))                                           \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, LEGACY, (CUgraphExec exec))                                       \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, LEGACY, (CUgraph graph))

/* Ends the program with a line that names the call. */
static inline void check_call(CUresult result, const char *call, const char *file, int line) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s:%d: %s returned %d\n", file, line, call, result);
        exit(1);
    }
}
#define CHECK(call) check_call((call), #call, __FILE__, __LINE__)

#if defined(WAY_LINKED)

#define WAY "linked"
#define DECLARE(symbol, name, version, flags, params) extern CUresult symbol params;
DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE
#define cu(symbol) symbol
static inline void load_driver(void) {}

#else

#define MEMBER(symbol, name, version, flags, params) CUresult(*symbol) params;
static struct {
    DRIVER_FUNCTIONS(MEMBER)
} driver;
#undef MEMBER
#define cu(symbol) (driver.symbol)

static inline void *open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "dlopen: %s\n", dlerror());
        exit(1);
    }
    return library;
}

#if defined(WAY_DLSYM)

#define WAY "dlsym"
static inline void load_driver(void) {
    void *library = open_driver();
#define LOAD(symbol, name, version, flags, params)                                                                       \
    if (!(*(void **)&driver.symbol = dlsym(library, #symbol))) {                                                         \
        fprintf(stderr, "dlsym: %s\n", dlerror());                                                                       \
        exit(1);                                                                                                         \
    }
    DRIVER_FUNCTIONS(LOAD)
#undef LOAD
}

#elif defined(WAY_PROC_ADDRESS)

#define WAY "proc_address"
typedef CUresult (*get_proc_address)(const char *, void **, int, unsigned long long, int *);
static inline void load_driver(void) {
    get_proc_address first = NULL, get = NULL;
    *(void **)&first = dlsym(open_driver(), "cuGetProcAddress_v2");
    if (!first) {
        fprintf(stderr, "dlsym: %s\n", dlerror());
        exit(1);
    }
    int status = -1;
    /* The look-up function looks itself up. From then on the program uses the returned function. */
    CHECK(first("cuGetProcAddress", (void **)&get, 12000, LEGACY, &status));
    if (!get || status != 0) {
        fprintf(stderr, "cuGetProcAddress does not find itself (status %d)\n", status);
        exit(1);
    }
#define LOAD(symbol, name, version, flags, params)                                                                       \
    if (get(name, (void **)&driver.symbol, version, flags, &status) != CUDA_SUCCESS || !driver.symbol || status != 0) { \
        fprintf(stderr, "cuGetProcAddress: %s not found (status %d)\n", name, status);                                   \
        exit(1);                                                                                                         \
    }
    DRIVER_FUNCTIONS(LOAD)
#undef LOAD
}

#else
#error "define one of WAY_LINKED, WAY_DLSYM, WAY_PROC_ADDRESS"
#endif
#endif

/* Initialises the driver and makes a context current on device 0. */
static inline CUcontext open_context(void) {
    CUdevice device;
    CUcontext context;
    load_driver();
    CHECK(cu(cuInit)(0));
    CHECK(cu(cuDeviceGet)(&device, 0));
    CHECK(cu(cuCtxCreate_v2)(&context, CU_CTX_SCHED_AUTO, device));
    return context;
}

/* Returns the code of a module with one empty kernel of this name. The code is valid until this
 * thread's next call. */
static inline const char *ptx_of(const char *name) {
    static _Thread_local char ptx[256];
    snprintf(ptx, sizeof ptx,
             ".version 7.0\n.target sm_70\n.address_size 64\n\n.visible .entry %s()\n{\n\tret;\n}\n", name);
    return ptx;
}

static inline CUmodule load_module(const char *name) {
    CUmodule module;
    CHECK(cu(cuModuleLoadData)(&module, ptx_of(name)));
    return module;
}

static inline CUfunction load_kernel(const char *name) {
    CUfunction function;
    CHECK(cu(cuModuleGetFunction)(&function, load_module(name), name));
    return function;
}

static inline CUstream new_stream(void) {
    CUstream stream;
    CHECK(cu(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Launches so many blocks of one warp of a kernel without parameters. */
static inline CUresult launch_blocks(CUfunction kernel, unsigned blocks, CUstream stream) {
    return cu(cuLaunchKernel)(kernel, blocks, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

/* Launches one warp of a kernel without parameters. */
static inline CUresult launch_on(CUfunction kernel, CUstream stream) { return launch_blocks(kernel, 1, stream); }

/* Captures so many launches of so many blocks on a stream, and returns their graph. */
static inline CUgraph capture_blocks(CUfunction kernel, unsigned blocks, CUstream stream, int mode, long count) {
    CUgraph graph;
    CHECK(cu(cuStreamBeginCapture_v2)(stream, mode));
    for (long i = 0; i < count; i++) CHECK(launch_blocks(kernel, blocks, stream));
    CHECK(cu(cuStreamEndCapture)(stream, &graph));
    return graph;
}

/* Captures so many launches of one warp on a stream, and returns their graph. */
static inline CUgraph capture_launches(CUfunction kernel, CUstream stream, int mode, long count) {
    return capture_blocks(kernel, 1, stream, mode, count);
}

enum { MS_NS = 1000000 };

static inline long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Prints a line at once, because a test waits for it. */
static inline void say(const char *line) {
    puts(line);
    fflush(stdout);
}

/* Ends the program unless its arguments are as they must be. */
static inline void usage(int is_right, const char *text) {
    if (is_right) return;
    fprintf(stderr, "usage: %s\n", text);
    exit(2);
}

/* Waits until the parent process closes this program's standard input, so that it can observe the
 * live program. */
static inline void wait_for_end_of_input(void) {
    fflush(stdout);
    while (getchar() != EOF) {
    }
}

#endif
