/* A library that stands for the driver as TensorFlow's does: it has the driver's functions under their names, opens libcuda.so.1 when the first
 * of them is called, and looks each up when it is. Nothing in it knows a function's parameters: they are words, passed on as they came. */
#define WAY_DLSYM
#include "driver.h"

typedef unsigned long long word;

/* Six words come in registers, the others on the stack, among them a structure of eight. */
#define PARAMETERS                                                                                                       \
    word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l, word m, word n, word o
#define ARGUMENTS a, b, c, d, e, f, g, h, i, j, k, l, m, n, o

static void *look_up(const char *symbol) {
    static void *library;
    if (!library) library = open_driver();
    void *found = dlsym(library, symbol);
    if (!found) {
        fprintf(stderr, "dlsym: %s\n", dlerror());
        exit(1);
    }
    return found;
}

#define FORWARD(symbol, name, version, flags, params)                                                                    \
    CUresult symbol(PARAMETERS) {                                                                                        \
        static CUresult (*real)(PARAMETERS);                                                                             \
        if (!real) *(void **)&real = look_up(#symbol);                                                                   \
        return real(ARGUMENTS);                                                                                          \
    }
DRIVER_FUNCTIONS(FORWARD)
FORWARD(cuGetProcAddress_v2, , , , )
