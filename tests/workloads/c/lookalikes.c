/* A library with names that begin like the driver's but are not the driver's. */
int cudnnCreate(void) { return 1; }
int cublasCreate_v2(void) { return 2; }
int cudaMalloc(void) { return 3; }
int curl_easy_init(void) { return 4; }
int cuInitialize(void) { return 5; }
int cuLaunchKernelFancy(void) { return 6; }
int cu(void) { return 7; }
int cup(void) { return 8; }
