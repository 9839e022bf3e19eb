/* forwards.c as a libcuda.so.1 that only loads another libcuda, as the one of WSL2. */
#include "forwards.c"
