/* forwards.c, looking the functions up by cuGetProcAddress. */
#define BY_PROC_ADDRESS
#include "forwards.c"
