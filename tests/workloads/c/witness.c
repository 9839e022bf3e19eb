/* A third-party preload library in front of deepres. The library sees every look-up of a driver
 * function that the program makes, by dlsym or cuGetProcAddress. For each look-up it appends a line
 * to the file WITNESS_LOG:
 *
 *   dlsym NAME - - OWNER ASKER
 *   cuGetProcAddress NAME VERSION FLAGS OWNER ASKER
 *
 * OWNER is the file name of the library that contains the result, or `nobody` if there was none.
 * ASKER is the file from which the look-up came. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*look_up_v1)(const char *, void **, int, unsigned long long);
typedef int (*look_up_v2)(const char *, void **, int, unsigned long long, int *);
static look_up_v1 real_v1;
static look_up_v2 real_v2;

/* From this version on cuGetProcAddress has a parameter for the status. */
enum { V2_SINCE = 12000 };

static const char *file_of(void *address) {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return "somebody";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void witness(const char *how, const char *name, const char *detail, void *address, void *asker) {
    const char *log = getenv("WITNESS_LOG"), *owner = address ? file_of(address) : "nobody";
    char line[512];
    if (!log) return;
    int length =
        snprintf(line, sizeof line, "%s %s %s %s %s\n", how, *name ? name : "-", detail, owner, file_of(asker));
    /* One write per line, because threads and processes share the file. */
    int file = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0 || write(file, line, (size_t)length) != length) abort();
    close(file);
}

static int witness_v1(const char *name, void **answer, int version, unsigned long long flags);
static int witness_v2(const char *name, void **answer, int version, unsigned long long flags, int *status);

static void witness_answer(int result, const char *name, void **answer, int version, unsigned long long flags,
                           void *asker) {
    char detail[64];
    void *found = result == 0 && answer ? *answer : NULL;
    snprintf(detail, sizeof detail, "%d %llu", version, flags);
    witness("cuGetProcAddress", name, detail, found, asker);
    if (!found || strcmp(name, "cuGetProcAddress") != 0) return;
    /* Look-ups through the returned function must be seen too. */
    if (version >= V2_SINCE) {
        real_v2 = (look_up_v2)found;
        *answer = (void *)witness_v2;
    } else {
        real_v1 = (look_up_v1)found;
        *answer = (void *)witness_v1;
    }
}

static int witness_v1(const char *name, void **answer, int version, unsigned long long flags) {
    int result = real_v1(name, answer, version, flags);
    witness_answer(result, name, answer, version, flags, __builtin_return_address(0));
    return result;
}

static int witness_v2(const char *name, void **answer, int version, unsigned long long flags, int *status) {
    int result = real_v2(name, answer, version, flags, status);
    witness_answer(result, name, answer, version, flags, __builtin_return_address(0));
    return result;
}

void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*real)(void *, const char *);
    if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *address = real(handle, name);
    if (strncmp(name, "cu", 2) != 0) return address;
    witness("dlsym", name, "- -", address, __builtin_return_address(0));
    if (address && strcmp(name, "cuGetProcAddress") == 0) {
        real_v1 = (look_up_v1)address;
        return (void *)witness_v1;
    }
    if (address && strcmp(name, "cuGetProcAddress_v2") == 0) {
        real_v2 = (look_up_v2)address;
        return (void *)witness_v2;
    }
    return address;
}
