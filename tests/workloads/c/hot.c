/* hot counted|watched: counts the costs of launches beyond plain instructions. For the driver of
 * tests/stub-driver, whose launches have none of these costs. Prints one JSON line.
 *
 *   counted  system calls (by a seccomp filter of this thread) and allocations (by an allocator in
 *            front of libc's)
 *   watched  instructions that lock memory, for each kind of call. Without such an instruction no
 *            lock is taken. The program runs launches one instruction at a time. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

/* After WARM_UP launches the times of all kinds are known. */
enum { STREAMS = 8, WARM_UP = 400000, BETWEEN = 2000, COUNTED = 1000000 };

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

static __thread int is_counted;
static long allocations;

void *malloc(size_t bytes) {
    allocations += is_counted;
    return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) {
    allocations += is_counted;
    return __libc_calloc(count, bytes);
}
void *realloc(void *at, size_t bytes) {
    allocations += is_counted;
    return __libc_realloc(at, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    allocations += is_counted;
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **at, size_t alignment, size_t bytes) {
    allocations += is_counted;
    *at = __libc_memalign(alignment, bytes);
    return *at ? 0 : ENOMEM;
}

static long others, last_other;
static long wakes, looks;
/* State of the counted launches: number of the present one, how many gave up the processor, and the
 * last that did. */
static long underway, yielding, last_yielding = -1;

/* A system call that the helper thread makes for the filtered thread. */
static struct {
    atomic_int is_asked;
    long number, arguments[3], result;
} call;

/* Handles a system call of the filtered thread. To wake the meter thread, which sleeps after a
 * pause, a launch checks the descriptor and writes eight bytes. A launch that meets the meter
 * thread at a stream yields the processor until the meter thread is done. */
static void on_call(int signal, siginfo_t *info, void *context) {
    (void)signal;
    enum { GET_SIGNAL = 11 };
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    int is_wake = info->si_syscall == SYS_write && registers[REG_RDX] == sizeof(long);
    int is_look = info->si_syscall == SYS_fstat || info->si_syscall == SYS_newfstatat ||
                  (info->si_syscall == SYS_fcntl && registers[REG_RSI] == GET_SIGNAL);
    int is_yield = info->si_syscall == SYS_sched_yield;
    if (!is_wake && !is_look && !is_yield) {
        others++;
        last_other = info->si_syscall;
        registers[REG_RAX] = -ENOSYS;
        return;
    }
    wakes += is_wake;
    looks += is_look;
    if (is_yield && last_yielding != underway) {
        yielding++;
        last_yielding = underway;
    }
    call.number = info->si_syscall;
    call.arguments[0] = registers[REG_RDI];
    call.arguments[1] = registers[REG_RSI];
    call.arguments[2] = registers[REG_RDX];
    atomic_store(&call.is_asked, 1);
    while (atomic_load(&call.is_asked)) {
    }
    registers[REG_RAX] = call.result;
}

static void *call_instead(void *unused) {
    (void)unused;
    for (;; usleep(50)) {
        if (!atomic_load(&call.is_asked)) continue;
        call.result = syscall(call.number, call.arguments[0], call.arguments[1], call.arguments[2], 0);
        if (call.result < 0) call.result = -errno;
        atomic_store(&call.is_asked, 0);
    }
    return NULL;
}

static void filter_this_thread(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, STDOUT_FILENO, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp");
        exit(1);
    }
}

static volatile long steps, locked;

/* After each instruction, checks whether the next one locks memory, by its prefix or as an
 * exchange. */
static void on_step(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    const unsigned char *next = (const unsigned char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    enum { LOCK = 0xf0, OPERAND = 0x66, REPEAT = 0xf3, REPEAT_NOT = 0xf2, REX = 0x40, XCHG_8 = 0x86, XCHG = 0x87, REGISTERS = 0xc0 };
    int is_locked = 0;
    while (*next == LOCK || *next == OPERAND || *next == REPEAT || *next == REPEAT_NOT) is_locked |= *next++ == LOCK;
    if ((*next & 0xf0) == REX) next++;
    is_locked |= (*next == XCHG_8 || *next == XCHG) && (next[1] & REGISTERS) != REGISTERS;
    steps++;
    locked += is_locked;
}

/* Runs the rest of the caller's block one instruction at a time. */
static inline __attribute__((always_inline)) void step(int on) {
    enum { TRAP = 0x100 };
    unsigned long flags;
    __asm__ volatile("pushfq; popq %0" : "=r"(flags)::"memory");
    flags = on ? flags | TRAP : flags & ~(unsigned long)TRAP;
    __asm__ volatile("pushq %0; popfq" ::"r"(flags) : "memory", "cc");
}

typedef int (*any)();

static any find(void *library, const char *name) {
    any found = NULL;
    if (!(*(void **)&found = dlsym(library, name))) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

struct config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
};

static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*launch_ex)(const struct config *, void *, void **, void **);
static int (*launch_graph)(void *, void *);
static int (*memory_info)(size_t *, size_t *);
static void *kernel, *streams[STREAMS], *executable;

/* In the order of `kind_of`. */
enum { KERNEL, KERNEL_EX, GRAPH, MEMORY_INFO, KINDS };
static const char *const names[KINDS] = {"cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemGetInfo"};

static int kind_of(int number) {
    switch (number % 8) {
    case 0: return KERNEL_EX;
    case 1: return GRAPH;
    case 2: return MEMORY_INFO;
    default: return KERNEL;
    }
}

static void launch_once(int number) {
    void *stream = streams[number / 8 % STREAMS];
    struct config config = {{1, 1, 1}, {1, 1, 1}, 0, stream, NULL, 0};
    size_t free_bytes, total_bytes;
    int code;
    switch (kind_of(number)) {
    case KERNEL_EX: code = launch_ex(&config, kernel, NULL, NULL); break;
    case GRAPH: code = launch_graph(executable, stream); break;
    case MEMORY_INFO: code = memory_info(&free_bytes, &total_bytes); break;
    default: code = launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    }
    if (code) _exit(1);
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Sets whether the other threads run only while this thread rests. */
static void run_alone(int is_alone) {
    struct sched_param none = {0};
    static cpu_set_t before;
    cpu_set_t here = before;
    if (is_alone) {
        sched_getaffinity(0, sizeof before, &before);
        CPU_ZERO(&here);
        CPU_SET(sched_getcpu(), &here);
    }
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *entry; threads && (entry = readdir(threads));) {
        int thread = atoi(entry->d_name);
        if (!thread) continue;
        if (sched_setaffinity(thread, sizeof here, &here)) perror("sched_setaffinity");
        if (thread != getpid() && sched_setscheduler(thread, is_alone ? SCHED_IDLE : SCHED_OTHER, &none)) perror("sched_setscheduler");
    }
    if (threads) closedir(threads);
}

/* Gives every lane all the events that it ever needs: as many as without any help of the meter
 * thread, whose turn may be delayed for any time. During the rest the meter thread ends the queued
 * segments. The launches after the rest bring the lanes back to their normal state. */
static void have_events(void) {
    enum { REST_US = 100000 };
    run_alone(1);
    for (int i = 0; i < 2 * COUNTED; i++) launch_once(i);
    run_alone(0);
    usleep(REST_US);
    for (int i = 0; i < WARM_UP; i++) launch_once(i);
}

/* Watches calls of all kinds until UNLOCKED calls of each kind took no lock. The scheduler may
 * delay a call until the meter thread ends the call's segment; such a call takes a lock. */
static void watch(void) {
    enum { REST_US = 500, UNLOCKED = 12, MOST = 20000 };
    struct sigaction action = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    int watched[KINDS] = {0}, unlocked[KINDS] = {0};
    long fewest_steps[KINDS] = {0};
    sigaction(SIGTRAP, &action, NULL);
    /* Stepping through a launch takes so long that otherwise the meter thread would end the
     * launch's segment. */
    run_alone(1);
    int lacking = KINDS;
    for (int i = 0; i < MOST && lacking; i++) {
        usleep(REST_US);
        for (int j = 0; j < BETWEEN; j++) launch_once(j);
        steps = locked = 0;
        step(1);
        launch_once(i);
        step(0);
        int kind = kind_of(i);
        watched[kind]++;
        unlocked[kind] += !locked;
        lacking -= !locked && unlocked[kind] == UNLOCKED;
        if (!locked && (!fewest_steps[kind] || steps < fewest_steps[kind])) fewest_steps[kind] = steps;
    }
    for (int kind = 0; kind < KINDS; kind++)
        printf("%s\"%s\":{\"watched\":%d,\"unlocked\":%d,\"fewest_steps\":%ld}", kind ? "," : "{", names[kind], watched[kind], unlocked[kind],
               fewest_steps[kind]);
    printf("}\n");
}

int main(int argc, char **argv) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *graph;
    pthread_t helper;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(any *)&launch = find(library, "cuLaunchKernel");
    *(any *)&launch_ex = find(library, "cuLaunchKernelEx");
    *(any *)&launch_graph = find(library, "cuGraphLaunch");
    *(any *)&memory_info = find(library, "cuMemGetInfo_v2");
    if (((int (*)(unsigned))find(library, "cuInit"))(0) ||
        ((int (*)(void **, int))find(library, "cuDevicePrimaryCtxRetain"))(&context, 0) ||
        ((int (*)(void *))find(library, "cuCtxSetCurrent"))(context) ||
        ((int (*)(void **, const void *))find(library, "cuModuleLoadData"))(&module, "") ||
        ((int (*)(void **, void *, const char *))find(library, "cuModuleGetFunction"))(&kernel, module, "kernel") ||
        ((int (*)(void **, unsigned))find(library, "cuGraphCreate"))(&graph, 0) ||
        ((int (*)(void **, void *, unsigned long long))find(library, "cuGraphInstantiateWithFlags"))(&executable, graph, 0))
        return 1;
    for (int i = 0; i < STREAMS; i++)
        if (((int (*)(void **, unsigned))find(library, "cuStreamCreate"))(&streams[i], 0)) return 1;
    for (int i = 0; i < WARM_UP; i++) launch_once(i);
    if (argc == 2 && !strcmp(argv[1], "watched")) {
        watch();
        return 0;
    }
    have_events();
    pthread_create(&helper, NULL, call_instead, NULL);

    filter_this_thread();
    long long began_ns = now_ns();
    is_counted = 1;
    for (int i = 0; i < COUNTED; i++) {
        underway = i;
        launch_once(i);
    }
    is_counted = 0;
    long long took_ns = now_ns() - began_ns;

    char line[512];
    int length = snprintf(line, sizeof line,
                          "{\"launches\":%d,\"took_ns\":%lld,\"wakes\":%ld,\"looks\":%ld,\"yielding\":%ld,\"system_calls\":%ld,"
                          "\"last_system_call\":%ld,\"allocations\":%ld}\n",
                          COUNTED, took_ns, wakes, looks, yielding, others, last_other, allocations);
    /* The filter allows nothing but this write. */
    _exit(write(STDOUT_FILENO, line, length) != length);
}
