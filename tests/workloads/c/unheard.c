/* unheard gone|full: asks for more memory than any limit allows while stderr is a broken pipe. The
 * reader of the pipe is gone, or the pipe is full and nobody reads it. Prints the result. */
#define _GNU_SOURCE
#include "driver.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int ends[2];
    if (argc != 2 || pipe(ends) != 0)
        return 2;
    if (strcmp(argv[1], "gone") == 0) {
        close(ends[0]);
    } else {
        char page[4096] = {0};
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        while (write(ends[1], page, sizeof page) > 0) {
        }
        fcntl(ends[1], F_SETFL, 0);
    }
    dup2(ends[1], STDERR_FILENO);
    open_context();
    CUdeviceptr address = 0;
    printf("{\"result\":%d}\n", cu(cuMemAlloc_v2)(&address, (size_t)1 << 46));
    return 0;
}
