/* hosts local|global LIBRARY: loads the library, with symbols visible only to itself or to all, and
 * calls its function `run`. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: hosts local|global LIBRARY\n");
        return 2;
    }
    void *library = dlopen(argv[2], RTLD_LAZY | (strcmp(argv[1], "local") ? RTLD_GLOBAL : RTLD_LOCAL));
    void (*run)(void) = NULL;
    if (library) *(void **)&run = dlsym(library, "run");
    if (!run) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    run();
    return 0;
}
