/* A library linked to libcuda that launches by itself, as a plug-in does that is opened with
 * RTLD_DEEPBIND. */
int cuInit(unsigned);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int initialise(void) { return cuInit(0); }

int launch_some(void *kernel, int count) {
    int failed = 0;
    for (int i = 0; i < count; i++) failed += cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) != 0;
    return failed;
}
