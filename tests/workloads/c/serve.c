/* serve: does pieces of work (requests of a server, steps of a trainer) with pauses between them,
 * and prints how long they took.
 *
 *   serve [--kernel NAME] [--kernels K] [--rate R | --every-us US | --gap-us US] [--seconds S]
 *         [--seed N] [--log FILE]
 *
 * A piece is K launches of the kernel and a wait for them.
 *
 *   --rate R      pieces arrive as a Poisson process of R a second, even if the piece before is not
 *                 done; a piece's time counts from its arrival
 *   --every-us US a piece arrives every US microseconds, even if the piece before is not done; a
 *                 piece's time counts from its arrival, and a piece that is not done when the next
 *                 one arrives is late
 *   --gap-us US   the next piece arrives US microseconds after the piece before was done
 *   --seconds S   0 (the default): runs until it is killed
 *   --log FILE    an existing file of 8-byte numbers: the number of launches, then in a ring the
 *                 time at which each launch returned (ns of CLOCK_MONOTONIC)
 *
 * Prints one JSON line: the number of pieces, the number of late ones, their times, and the times
 * of their first launch calls, in microseconds. */
#include "driver.h"
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECES_MAX = 1 << 20 };

static void sleep_until(long long at_ns) {
    struct timespec t = {at_ns / 1000000000LL, at_ns % 1000000000LL};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {
    }
}

static int by_size(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static void print_times(const char *name, double *us, long count) {
    double sum = 0;
    qsort(us, count, sizeof *us, by_size);
    for (long i = 0; i < count; i++)
        sum += us[i];
    long p99 = (long)ceil(count * 0.99) - 1;
    printf(",\"%s\":{\"mean\":%.3f,\"p50\":%.3f,\"p99\":%.3f,\"worst\":%.3f}", name, sum / count, us[(count - 1) / 2], us[p99],
           us[count - 1]);
}

int main(int argc, char **argv) {
    const char *name = "busy_1000us", *log_file = NULL;
    double rate = 0, seconds = 0;
    long kernels = 1, gap_us = 0, every_us = 0, seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--kernel")) name = value;
        else if (!strcmp(argv[i], "--kernels")) kernels = atol(value);
        else if (!strcmp(argv[i], "--rate")) rate = atof(value);
        else if (!strcmp(argv[i], "--every-us")) every_us = atol(value);
        else if (!strcmp(argv[i], "--gap-us")) gap_us = atol(value);
        else if (!strcmp(argv[i], "--seconds")) seconds = atof(value);
        else if (!strcmp(argv[i], "--seed")) seed = atol(value);
        else if (!strcmp(argv[i], "--log")) log_file = value;
        else {
            fprintf(stderr, "serve: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    if (kernels < 1) {
        fprintf(stderr, "serve: at least one kernel\n");
        return 2;
    }
    unsigned long long *log = NULL;
    unsigned long log_places = 0;
    if (log_file) {
        struct stat status;
        int file = open(log_file, O_RDWR);
        if (file < 0 || fstat(file, &status) || status.st_size < 16) {
            fprintf(stderr, "serve: cannot use %s\n", log_file);
            return 1;
        }
        log_places = status.st_size / 8 - 1;
        log = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (log == MAP_FAILED) return 1;
    }
    CUcontext context = open_context();
    CUfunction kernel = load_kernel(name);
    CUstream stream = new_stream();
    double *took_us = malloc(PIECES_MAX * sizeof *took_us), *launch_us = malloc(PIECES_MAX * sizeof *launch_us);
    srand48(seed);
    say("ready");

    long count = 0, late = 0;
    unsigned long long launches = 0;
    long long start = now_ns(), end = start + (long long)(seconds * 1e9), due = start;
    for (; count < PIECES_MAX; count++) {
        if (rate > 0) due += (long long)(-log1p(-drand48()) / rate * 1e9);
        else if (every_us > 0) due += every_us * 1000LL;
        else due = now_ns() + gap_us * 1000LL;
        if (seconds > 0 && due >= end) break;
        if (rate > 0 || every_us > 0 || gap_us > 0) sleep_until(due);
        long long called = now_ns();
        for (long k = 0; k < kernels; k++) {
            CHECK(launch_on(kernel, stream));
            long long returned = now_ns();
            if (k == 0) launch_us[count] = (returned - called) / 1e3;
            if (log) {
                log[1 + launches % log_places] = returned;
                __atomic_store_n(&log[0], ++launches, __ATOMIC_RELEASE);
            }
        }
        CHECK(cu(cuStreamSynchronize)(stream));
        took_us[count] = (now_ns() - due) / 1e3;
        late += every_us > 0 && took_us[count] > every_us;
    }
    if (count == 0) {
        fprintf(stderr, "serve: no piece of work within the time\n");
        return 1;
    }
    printf("{\"pieces\":%ld,\"late\":%ld,\"seconds\":%.6f", count, late, (now_ns() - start) / 1e9);
    print_times("took_us", took_us, count);
    print_times("launch_us", launch_us, count);
    say("}");
    CHECK(cu(cuCtxDestroy_v2)(context));
    return 0;
}
