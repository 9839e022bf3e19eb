/* forwards.c with look-ups by cuGetProcAddress. */
#define BY_PROC_ADDRESS
#include "forwards.c"
