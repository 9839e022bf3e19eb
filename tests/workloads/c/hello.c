/* hello: a program that knows nothing of GPUs. */
#include <stdio.h>

int main(void) {
    puts("hello");
    return 0;
}
