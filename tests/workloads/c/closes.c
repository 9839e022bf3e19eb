/* closes [first]: closes every descriptor that it did not open and the driver does not need, as
 * daemons and launchers do. Then it opens files of its own under the same numbers. `first` selects
 * which kind of file gets which number.
 *
 * The program goes on launching and prints the state of those files as one JSON object. Then it
 * stays until its standard input is closed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

enum { NUMBERS = 256, FILES = 36, KINDS = 3, LAUNCHES = 20, HELD_BYTES = 8 << 20, COUNT = 5 };

static const char TEXT[] = "nobody else's";

static int is_ours(int number) {
    char path[64], target[256] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", number);
    return readlink(path, target, sizeof target - 1) > 0 &&
           (strstr(target, "eventfd") || strstr(target, "socket:") || strstr(target, "memfd:") || strstr(target, "standalone"));
}

static void expect(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "closes: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

/* Whether the file is unchanged since its creation. */
static int is_untouched(int number, int kind, int other_end) {
    struct stat status;
    unsigned long long count = 0;
    char text[64];
    switch (kind) {
    case 0:
        return fstat(number, &status) == 0 && status.st_size == 0;
    case 1:
        return read(number, &count, sizeof count) == sizeof count && count == COUNT;
    default:
        return recv(number, text, sizeof text, MSG_DONTWAIT) == sizeof TEXT && !memcmp(text, TEXT, sizeof TEXT) &&
               recv(other_end, text, sizeof text, MSG_DONTWAIT) < 0 && errno == EAGAIN;
    }
}

static int files[FILES], other_ends[FILES], first, has_files;

/* Runs after the exit handlers of all libraries. */
static void report(void) {
    int touched = 0;
    for (int i = 0; has_files && i < FILES; i++)
        touched += !is_untouched(files[i], (first + i) % KINDS, other_ends[i]);
    printf("{\"touched\":%d}\n", touched);
}

int main(int count, char **arguments) {
    atexit(report);
    first = count > 1 ? atoi(arguments[1]) : 0;
    CUcontext context = open_context();
    CUfunction kernel = load_kernel("quick");
    CUdeviceptr held, more;
    CUstream stream = new_stream();
    CHECK(cu(cuMemAlloc_v2)(&held, HELD_BYTES));

    int closed = 0, launches = 0;
    for (int i = 0; i < FILES; i++) {
        int ends[2];
        expect(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair");
        files[i] = fcntl(ends[0], F_DUPFD, NUMBERS + i), other_ends[i] = fcntl(ends[1], F_DUPFD, NUMBERS + FILES + i);
        expect(files[i] >= 0 && other_ends[i] >= 0 && send(other_ends[i], TEXT, sizeof TEXT, 0) == sizeof TEXT, "a socket");
        close(ends[0]), close(ends[1]);
    }
    for (int number = 3; number < NUMBERS; number++)
        if (is_ours(number)) {
            close(number);
            closed++;
        }
    for (int i = 0; i < FILES; i++) {
        int number = -1, kind = (first + i) % KINDS;
        if (kind == 0)
            number = open(".", O_TMPFILE | O_RDWR, 0600);
        else if (kind == 1)
            number = eventfd(COUNT, EFD_NONBLOCK);
        else
            number = dup(files[i]);
        expect(number >= 0, "a file");
        close(files[i]);
        files[i] = number;
    }
    has_files = 1;
    for (int i = 0; i < LAUNCHES; i++) {
        usleep(60000);
        CHECK(launch_on(kernel, stream));
        CHECK(cu(cuStreamSynchronize)(stream));
        launches++;
    }
    clock_t before = clock();
    usleep(1000000);
    long idle_ms = (clock() - before) * 1000 / CLOCKS_PER_SEC;
    CHECK(launch_on(kernel, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    launches++;
    int refused = cu(cuMemAlloc_v2)(&more, (size_t)6 << 30);
    printf("{\"closed\":%d,\"kernel_launches\":%d,\"idle_cpu_ms\":%ld,\"six_gib\":%d,\"bytes\":%d}\n", closed, launches, idle_ms,
           refused, HELD_BYTES);
    wait_for_end_of_input();
    CHECK(cu(cuMemFree_v2)(held));
    CHECK(cu(cuCtxDestroy_v2)(context));
    return 0;
}
