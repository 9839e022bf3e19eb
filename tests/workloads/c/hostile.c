/* hostile ATTACK...: keeps the GPU backlogged, and meanwhile attacks the daemon.
 *
 *   rings       rings the process's own bells in a loop
 *   threads=N   has so many idle threads
 *   sessions=N  has so many child processes with a session each
 *   forks       starts child processes with a session, one after another, which end at once
 *   maps=N      a child process with a session has so many mappings
 *   mounts=N    a child process with a session has so many mounts in a namespace of its own
 *
 * Prints `ready` once everything is there, and runs until it is killed. If the system allows fewer
 * threads, mappings or mounts, the program goes on with fewer. */
#define _GNU_SOURCE
#include "driver.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_BELLS = 64, STACK_BYTES = 16 << 10, PAGE_BYTES = 4096, PIECES = 8 };

static void *idle(void *nothing) {
    while (pause()) {
    }
    return nothing;
}

static void *ring(void *nothing) {
    int bells[MAX_BELLS], count = 0;
    DIR *descriptors = opendir("/proc/self/fd");
    for (struct dirent *entry; descriptors && (entry = readdir(descriptors));) {
        char target[64] = "";
        if (readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target - 1) > 0 &&
            !strcmp(target, "anon_inode:[eventfd]") && count < MAX_BELLS)
            bells[count++] = atoi(entry->d_name);
    }
    if (count == 0) {
        fprintf(stderr, "hostile: no bell\n");
        exit(1);
    }
    for (unsigned long long one = 1;;)
        for (int i = 0; i < count; i++)
            if (write(bells[i], &one, sizeof one) < 0) return nothing;
}

static void start_thread(void *(*function)(void *)) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    pthread_create(&thread, &small, function, NULL);
}

static void map_pages(long count) {
    for (long i = 0; i < count; i++)
        mmap(NULL, PAGE_BYTES, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void mount_folders(long count) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) return;
    for (long i = 0; i < count; i++)
        if (mount("none", "/tmp", "tmpfs", 0, "size=4k")) return;
}

/* Starts a child that prepares itself, opens a session and then idles. Returns once it idles. */
static void start_child(void (*prepare)(long), long count) {
    int ready[2];
    char byte;
    if (pipe(ready)) exit(1);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (prepare) prepare(count);
        open_context();
        if (write(ready[1], "r", 1) != 1) exit(1);
        idle(NULL);
        exit(0);
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) {
        fprintf(stderr, "hostile: a child ended\n");
        exit(1);
    }
    close(ready[0]);
}

static void start_forks(void) {
    if (fork()) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        if (fork() == 0) {
            open_context();
            _exit(0);
        }
        wait(NULL);
    }
}

int main(int argc, char **argv) {
    /* The children come first, because a child of a process that uses the driver cannot use it. */
    for (int i = 1; i < argc; i++) {
        long count = strchr(argv[i], '=') ? atol(strchr(argv[i], '=') + 1) : 0;
        if (!strncmp(argv[i], "sessions=", 9))
            for (long child = 0; child < count; child++) start_child(NULL, 0);
        else if (!strncmp(argv[i], "maps=", 5)) start_child(map_pages, count);
        else if (!strncmp(argv[i], "mounts=", 7)) start_child(mount_folders, count);
        else if (!strcmp(argv[i], "forks")) start_forks();
    }
    open_context();
    CUfunction kernel = load_kernel("busy_1000us");
    CUstream stream = new_stream();
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "rings")) start_thread(ring);
        if (!strncmp(argv[i], "threads=", 8))
            for (long thread = atol(argv[i] + 8); thread > 0; thread--) start_thread(idle);
    }
    say("ready");
    for (;;) {
        for (int piece = 0; piece < PIECES; piece++) CHECK(launch_on(kernel, stream));
        CHECK(cu(cuStreamSynchronize)(stream));
    }
}
