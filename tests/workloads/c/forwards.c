/* A library that stands for the driver, as TensorFlow's does: it exports the driver's functions
 * under their names. At the first call of any function the library opens libcuda.so.1. At the first
 * call of each it looks the function up, by name or (BY_PROC_ADDRESS) by cuGetProcAddress. The
 * library knows no function's parameters and passes them on as words. With the variable
 * DRIVER_FILE, it opens this file instead of libcuda.so.1. */
#define WAY_DLSYM
#include "driver.h"

typedef unsigned long long word;

/* Six words come in registers, the others on the stack, among them a struct of eight words. */
#define PARAMETERS                                                                                                       \
    word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l, word m, word n, word o
#define ARGUMENTS a, b, c, d, e, f, g, h, i, j, k, l, m, n, o

static void *by_name(const char *symbol) {
    static void *library;
    const char *file = getenv("DRIVER_FILE");
    if (!library) library = file ? dlopen(file, RTLD_NOW) : open_driver();
    void *found = dlsym(library, symbol);
    if (!found) {
        fprintf(stderr, "dlsym: %s\n", dlerror());
        exit(1);
    }
    return found;
}

static void *look_up(const char *symbol, const char *name, int version, unsigned long long flags) {
#ifdef BY_PROC_ADDRESS
    static int (*ask)(const char *, void **, int, unsigned long long, void *);
    if (!ask) *(void **)&ask = by_name("cuGetProcAddress_v2");
    void *found = NULL;
    if (*name && !ask(name, &found, version, flags, NULL) && found) return found;
#else
    (void)name, (void)version, (void)flags;
#endif
    return by_name(symbol);
}

#define FORWARD(symbol, name, version, flags, params)                                                                    \
    CUresult symbol(PARAMETERS) {                                                                                        \
        static CUresult (*real)(PARAMETERS);                                                                             \
        if (!real) *(void **)&real = look_up(#symbol, name "", version + 0, flags + 0);                                  \
        return real(ARGUMENTS);                                                                                          \
    }
DRIVER_FUNCTIONS(FORWARD)
FORWARD(cuGetProcAddress_v2, , , , )
