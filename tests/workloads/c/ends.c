/* ends MANNER: uses the GPU and then ends, or starts other processes, in one of the ways that
 * processes do. Prints what it observed. */
#define _GNU_SOURCE
#include "driver.h"
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static CUcontext context;
static CUfunction slow;
static CUstream stream;
static atomic_int stop;

static void queue(int kernels) {
    for (int i = 0; i < kernels; i++)
        CHECK(launch_on(slow, stream));
}

static void leave(int signal) {
    (void)signal;
    exit(7);
}

static void *launcher(void *unused) {
    (void)unused;
    CHECK(cu(cuCtxSetCurrent)(context));
    while (!atomic_load(&stop)) {
        CHECK(launch_on(slow, NULL));
        CHECK(cu(cuCtxSynchronize)());
    }
    return NULL;
}

static void say_end(void) {
    printf("ended\n");
}

static void *outlive(void *unused) {
    (void)unused;
    CHECK(cu(cuCtxSetCurrent)(context));
    CHECK(cu(cuCtxSynchronize)());
    usleep(100000);
    printf("last\n");
    return NULL;
}

static int wait_for(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

int main(int argc, char **argv) {
    const char *manner = argc > 1 ? argv[1] : "";
    char *const nothing[] = {"true", NULL};
    pid_t child = -1;
    if (!strcmp(manner, "fork-before")) {
        /* The child uses the GPU. */
        child = fork();
        if (child > 0) {
            printf("child %d\n", wait_for(child));
            return 0;
        }
    }
    context = open_context();
    slow = load_kernel("busy_5000us");
    stream = new_stream();
    queue(4);
    if (!strcmp(manner, "exit")) exit(3);
    if (!strcmp(manner, "_exit")) _exit(4);
    if (!strcmp(manner, "abort")) abort();
    if (!strcmp(manner, "first-ends") || !strcmp(manner, "first-ends-full")) {
        /* The process goes on until the last of its threads ends. Then it exits as if main had
         * returned. */
        pthread_t other;
        /* `first-ends-full`: uses up all file descriptors first. */
        while (strcmp(manner, "first-ends") && dup(2) >= 0) {
        }
        atexit(say_end);
        pthread_create(&other, NULL, outlive, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(manner, "killed")) raise(SIGKILL);
    if (!strcmp(manner, "handler")) {
        signal(SIGTERM, leave);
        raise(SIGTERM);
    }
    if (!strcmp(manner, "destroyed")) {
        CHECK(cu(cuCtxDestroy_v2)(context));
        printf("after %d\n", cu(cuCtxSynchronize)());
    }
    if (!strcmp(manner, "reset")) {
        CUcontext primary;
        CHECK(cu(cuDevicePrimaryCtxRetain)(&primary, 0));
        CHECK(cu(cuCtxSetCurrent)(primary));
        slow = load_kernel("busy_5000us");
        stream = NULL;
        queue(4);
        CHECK(cu(cuDevicePrimaryCtxReset_v2)(0));
        printf("after %d\n", cu(cuCtxSynchronize)());
    }
    if (!strcmp(manner, "unloaded")) {
        CUmodule module = load_module("quick");
        CUfunction quick;
        CHECK(cu(cuModuleGetFunction)(&quick, module, "quick"));
        CHECK(launch_on(quick, stream));
        printf("unload %d\n", cu(cuModuleUnload)(module));
        printf("launch %d\n", launch_on(quick, stream));
    }
    if (!strcmp(manner, "library")) {
        /* Unloads a library while its kernel is queued. */
        CUresult (*get)(CUfunction *, CUlibrary, const char *) = NULL;
        *(void **)&get = dlsym(open_driver(), "cuLibraryGetKernel");
        CUlibrary library;
        CUfunction kernel;
        CHECK(cu(cuLibraryLoadData)(&library, ptx_of("quick"), NULL, NULL, 0, NULL, NULL, 0));
        CHECK(get(&kernel, library, "quick"));
        CHECK(launch_on(kernel, stream));
        int gone = cu(cuLibraryUnload)(library), after = launch_on(slow, stream);
        printf("unload %d, launch %d, waited %d\n", gone, after, cu(cuStreamSynchronize)(stream));
    }
    if (!strcmp(manner, "handler-in-storm")) {
        /* In most runs the signal arrives in the middle of a launch. */
        enum { STORM_US = 30000 };
        CUfunction quick = load_kernel("quick");
        signal(SIGALRM, leave);
        ualarm(STORM_US, 0);
        for (;;)
            CHECK(launch_on(quick, stream));
    }
    if (!strcmp(manner, "plain-child")) {
        /* A program that does not use the GPU must have no descriptor, connection or thread of
         * deepres. */
        char *const shell[] = {"sh", "-c", "ls /proc/$$/fd; grep Threads /proc/$$/status; find /proc/$$/fd -lname 'socket:*' -printf '%f\\n'", NULL};
        int failed = posix_spawnp(&child, "sh", NULL, NULL, shell, environ);
        printf("spawned %d\nchild %d\n", failed, wait_for(child));
    }
    if (!strcmp(manner, "vfork")) {
        child = vfork();
        if (child == 0) {
            execvp("true", nothing);
            _exit(127);
        }
        printf("child %d\n", wait_for(child));
    }
    if (!strcmp(manner, "spawn")) {
        int failed = posix_spawnp(&child, "true", NULL, NULL, nothing, environ);
        printf("spawned %d\nchild %d\n", failed, wait_for(child));
    }
    if (!strcmp(manner, "fork-among-threads")) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, launcher, NULL);
        int statuses = 0;
        for (int i = 0; i < 50; i++) {
            child = fork();
            if (child == 0) {
                /* In the child the driver returns an error and no call hangs. */
                _exit(cu(cuCtxSynchronize)() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
            }
            statuses |= wait_for(child);
        }
        atomic_store(&stop, 1);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        printf("children %d\n", statuses);
    }
    if (!strcmp(manner, "stopped")) {
        child = fork();
        if (child == 0) {
            usleep(200 * 1000);
            kill(getppid(), SIGCONT);
            _exit(0);
        }
        raise(SIGSTOP);
        queue(4);
        printf("continued %d, child %d\n", cu(cuStreamSynchronize)(stream), wait_for(child));
    }
    fflush(stdout);
    return 0;
}
