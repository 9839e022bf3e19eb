/* hello: a program that does not use a GPU. */
#include <stdio.h>

int main(void) {
    puts("hello");
    return 0;
}
