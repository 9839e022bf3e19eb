/* attack: a job that makes as much work for the daemon as a process without rights can make.
 *
 *   attack KIND...
 *
 *   bells      rings all bells of its session in a loop
 *   forks      makes children that end at once, in a loop
 *   sessions   starts SESSIONS further processes with a session each
 *   threads    has THREADS threads that sleep
 *   mappings   has MAPPINGS mappings, so its files in /proc are long
 *   mounts     has MOUNTS mounts in namespaces of its own
 *   stopped    starts STOPPED further processes, and stops each with SIGSTOP while its work is in flight
 *   backlog    keeps the GPU backlogged with kernels that are longer than a lease
 *
 * Prints `ready` and runs until it is killed. */
#define _GNU_SOURCE
#include "driver.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_BELLS = 64,
    SESSIONS = 24,
    THREADS = 2000,
    STACK_BYTES = 64 << 10,
    MAPPINGS = 20000,
    MOUNTS = 5000,
    STOPPED = 220
};

static int bells[MAX_BELLS];
static int bell_count;
static pid_t launchers[STOPPED];
/* Pipes from the launchers and to them. */
static int told[2], goes[2];

/* Finds the eventfds of the process. The bells of its session are among them. */
static void find_bells(void) {
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    while (folder && (entry = readdir(folder)) && bell_count < MAX_BELLS) {
        char target[64] = "";
        if (readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) > 0 && strstr(target, "[eventfd]"))
            bells[bell_count++] = atoi(entry->d_name);
    }
    if (folder) closedir(folder);
}

static void *ring(void *unused) {
    const uint64_t one = 1;
    for (;;) {
        for (int i = 0; i < bell_count; i++) {
            if (write(bells[i], &one, sizeof one) < 0) continue;
        }
    }
    return unused;
}

static void *fork_on(void *unused) {
    for (;;) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child > 0) waitpid(child, NULL, 0);
    }
    return unused;
}

static void *sleep_on(void *unused) {
    for (;;)
        pause();
    return unused;
}

static void start(void *(*run)(void *), int count) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (int i = 0; i < count; i++) {
        if (pthread_create(&thread, &attributes, run, NULL)) {
            fprintf(stderr, "attack: only %d threads\n", i);
            exit(1);
        }
    }
}

static void start_sessions(char *self) {
    for (int i = 0; i < SESSIONS; i++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            int null = open("/dev/null", O_WRONLY);
            if (null >= 0) dup2(null, STDOUT_FILENO);
            execl("/proc/self/exe", self, "idle", NULL);
            _exit(1);
        }
    }
}

/* The driver works only in children that are forked before it starts. */
static void start_launchers(void) {
    int failed = pipe(told) || pipe(goes);
    for (int i = 0; i < STOPPED && !failed; i++) {
        launchers[i] = fork();
        if (launchers[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            open_context();
            /* The kernel is as long as those of `backlog`, so the job's window is the same. */
            CUfunction kernel = load_kernel("busy_5000us");
            char go;
            if (write(told[1], "", 1) != 1 || read(goes[0], &go, 1) != 1) _exit(1);
            CHECK(launch_on(kernel, NULL));
            if (write(told[1], "", 1) == 1) pause();
            _exit(1);
        }
        failed = launchers[i] < 0;
    }
    if (failed) {
        perror("attack: launchers");
        exit(1);
    }
}

static volatile sig_atomic_t stopping, was_in_the_way;

static void go_on(int number) {
    (void)number;
    was_in_the_way = 1;
    kill(launchers[stopping], SIGCONT);
}

/* Waits until each launcher has told that it has come one step further. */
static void await_launchers(void) {
    char step;
    for (int i = 0; i < STOPPED; i++)
        if (read(told[0], &step, 1) != 1) exit(1);
}

/* Stops the launchers while their work is in flight. If a launcher stops while it holds the lock of
 * the simulated GPU, nobody can use the GPU. Such a launcher goes on, and stops again. */
static void stop_launchers(void) {
    const struct itimerval off = {0}, patience = {.it_value.tv_usec = 50000, .it_interval.tv_usec = 50000};
    char all[STOPPED] = {0};
    await_launchers();
    if (write(goes[1], all, STOPPED) != STOPPED) exit(1);
    await_launchers();
    signal(SIGALRM, go_on);
    for (stopping = 0; stopping < STOPPED; stopping++) {
        do {
            CUdeviceptr memory;
            was_in_the_way = 0;
            kill(launchers[stopping], SIGSTOP);
            waitpid(launchers[stopping], NULL, WUNTRACED);
            setitimer(ITIMER_REAL, &patience, NULL);
            CHECK(cu(cuMemAlloc_v2)(&memory, 4096));
            CHECK(cu(cuMemFree_v2)(memory));
            setitimer(ITIMER_REAL, &off, NULL);
        } while (was_in_the_way);
    }
}

/* Neighbours with equal rights are one mapping, so every second page gets other rights. */
static void map_much(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * MAPPINGS * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; pages != MAP_FAILED && i < MAPPINGS; i++)
        if (mprotect(pages + 2 * i * page, page, PROT_NONE)) break;
}

/* A process may make a user namespace only while it has one thread. */
static void mount_much(void) {
    int failed = unshare(CLONE_NEWUSER | CLONE_NEWNS) || mount("none", "/mnt", "tmpfs", 0, NULL);
    for (int i = 0; !failed && i < MOUNTS; i++) failed = mount("/mnt", "/mnt", NULL, MS_BIND, NULL);
    if (failed) {
        perror("attack: mounts");
        exit(1);
    }
}

int main(int argc, char **argv) {
    int has_backlog = 0;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "stopped")) start_launchers();
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "mounts")) mount_much();
    CUcontext context = open_context();
    CUfunction quick = load_kernel("quick"), lasting = load_kernel("busy_5000us");
    CHECK(launch_on(quick, NULL));
    CHECK(cu(cuCtxSynchronize)());
    find_bells();
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "bells")) start(ring, 1);
        else if (!strcmp(argv[i], "forks")) start(fork_on, 1);
        else if (!strcmp(argv[i], "sessions")) start_sessions(argv[0]);
        else if (!strcmp(argv[i], "threads")) start(sleep_on, THREADS);
        else if (!strcmp(argv[i], "mappings")) map_much();
        else if (!strcmp(argv[i], "stopped")) stop_launchers();
        else if (!strcmp(argv[i], "backlog")) has_backlog = 1;
        else if (strcmp(argv[i], "mounts") && strcmp(argv[i], "idle")) {
            fprintf(stderr, "attack: unknown kind %s\n", argv[i]);
            return 2;
        }
    }
    say("ready");
    while (has_backlog) {
        CHECK(launch_on(lasting, NULL));
        CHECK(cu(cuCtxSynchronize)());
    }
    sleep_on(context);
}
