/* A libcuda.so.1 that calls one of its exports by the dynamic linker, so a library that is loaded
 * before it can get the call. It does nothing else. */

__attribute__((noinline)) int cuEventCreate(void **event, unsigned flags) {
    *event = 0;
    return (int)flags;
}

int cuInit(unsigned flags) {
    void *event;
    return cuEventCreate(&event, flags);
}
